"""Cause before cure: what a drafted plan becomes once replays have told the cause.

Data is passed over, at the learning rate as it is. A rate that is too high is lowered, and no data
is passed over. Where longhaul itself, a kernel or a machine computes wrong numbers, the run stops
for a person: every further step would be computed as wrongly, and neither other data nor a lower
rate would mend it. Whatever stays undetermined is left to the ladder of the finding.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from longhaul.config.recover import RecoverSection
from longhaul.diagnose.cause import CAUSES, Verdict
from longhaul.recover.draft import draft
from longhaul.recover.learning_rate import PATH, in_force, rates
from longhaul.recover.plan import Plan, Situation, Sizes, sizes_of
from longhaul.recover.remedies import Remedy, range_to_skip

_SEEN_IN_A_REPLAY = frozenset({"non-finite", "loss-spike", "gradient-spike", "divergence"})
"""Kinds of finding that a few steps show again. What grows slowly would take too many, and what
may be done about it needs no cause."""


def asks_for_cause(plan: Plan, limits: RecoverSection) -> bool:
    """Whether the cause is looked for before the plan is carried out."""
    if any(change.how != "raise" for change in plan.undo):
        return False  # what a person or a restart changed is undone whatever a replay tells
    cures = plan.rollback is not None or "lower-lr" in plan.actions
    last_resort = plan.stop or bool(plan.fallback)
    return limits.diagnose and cures and not last_resort and plan.cause in _SEEN_IN_A_REPLAY


def shaped(plan: Plan, verdict: Verdict, situation: Situation, limits: RecoverSection) -> Plan:
    """The plan that suits the cause; the ladder's own where the cause asks for nothing that is
    still possible.

    Args:
        plan: as drafted.
        verdict: on the steps that led to it.
        situation: it was drafted in.
        limits: in force.
    """
    plan = replace(plan, verdict=verdict)
    sizes = sizes_of(limits, situation.settings.total_steps())
    match verdict.cause:
        case "undetermined":
            return plan
        case "data":
            remedy = _of_data(plan, situation, limits, sizes)
        case "hyper-parameter" if plan.undo:
            return plan  # the rate before the raise is one that held
        case "hyper-parameter":
            remedy = _of_rate(plan, verdict, situation, limits, sizes)
        case _:
            return _stop(plan, verdict, situation, limits, sizes)
    if remedy is None:
        return plan
    headline = f"{plan.headline}, because of the {_WORDS[verdict.cause]}"
    failed: tuple[float, ...] = ()
    if verdict.cause == "hyper-parameter":
        rate = in_force(situation.settings, plan.first_step)
        failed = tuple(sorted({rate, rate * verdict.evidence.get("too_high", 1.0)}))
    return _redrafted(plan, remedy, headline, situation, limits, sizes, failed)


def verdict_in(data: Mapping[str, Any]) -> Verdict | None:
    """The verdict that an event `cause` tells of; None if it makes no sense."""
    cause = data.get("cause")
    if cause not in CAUSES:
        return None
    evidence = {name: float(value) for name, value in data.get("evidence", {}).items()}
    return Verdict(cause, str(data.get("rung", "")), str(data.get("reason", "")), evidence)


_WORDS = {"data": "data", "hyper-parameter": "learning rate"}


def _of_data(
    plan: Plan, situation: Situation, limits: RecoverSection, sizes: Sizes
) -> Remedy | None:
    to = plan.rollback
    skip = range_to_skip(situation, plan, to, limits, sizes) if to else None
    return Remedy(("rollback", "skip"), to, skip) if skip else None


def _of_rate(
    plan: Plan, verdict: Verdict, situation: Situation, limits: RecoverSection, sizes: Sizes
) -> Remedy | None:
    # Where half of the rate shows it too, lowering to half would only lead here again: replays have
    # found the rate that works, if need be below the floor of ladders, which only halve.
    found, known = verdict.evidence.get("factor", 1.0), rates(situation, limits)
    new = known.lowered(limits.lr_factor)
    if found < limits.lr_factor:
        new = known.now * found
    if new is None:
        return None
    others = [action for action in plan.actions if action not in ("skip", "skip-batch", "lower-lr")]
    place = 1 if "rollback" in others else 0
    return Remedy(
        actions=(*others[:place], "lower-lr", *others[place:]),
        rollback=plan.rollback,
        settings={**plan.settings, PATH: new},
        reset=plan.reset,
        rewarm_steps=plan.rewarm_steps,
    )


def _stop(
    plan: Plan, verdict: Verdict, situation: Situation, limits: RecoverSection, sizes: Sizes
) -> Plan:
    """Going back is part of it, so that whoever has mended it goes on from before the harm."""
    remedy = Remedy(("rollback", "stop") if plan.rollback else ("stop",), plan.rollback)
    stop = _redrafted(plan, remedy, plan.headline, situation, limits, sizes)
    back = f"; back to step {plan.rollback.step:,}" if plan.rollback else ""
    return replace(
        stop,
        stop=True,
        reason=(
            f"{plan.headline}, because of a fault ({verdict.cause}): {verdict.sentence}{back}. "
            "Stopped for a person to look: every further step would be computed as wrongly, and "
            "neither other data nor a lower rate would mend it. Mend it and start again, or go on "
            "without looking for causes by --set recover.diagnose=false"
        ),
    )


def _redrafted(
    plan: Plan,
    remedy: Remedy,
    headline: str,
    situation: Situation,
    limits: RecoverSection,
    sizes: Sizes,
    failed: tuple[float, ...] = (),
) -> Plan:
    redrafted = draft(
        situation, limits, sizes, remedy, headline,
        cause=plan.cause, subject=plan.subject, sign=plan, failed=failed,
    )  # fmt: skip
    return replace(redrafted, verdict=plan.verdict)
