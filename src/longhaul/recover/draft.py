"""A remedy written out as a plan, with old values, price and reason in words for a tired person;
and what becomes of it once replays have told the cause (cause before cure).
"""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from longhaul.config.load import value_at
from longhaul.config.recover import RecoverSection
from longhaul.core.records import Finding
from longhaul.core.units import short_seconds
from longhaul.diagnose.cause import CAUSES, Verdict
from longhaul.logbook.description import arrow
from longhaul.recover.learning_rate import PATH, Rates, in_force, rates
from longhaul.recover.plan import Plan, Remedy, Situation
from longhaul.recover.remedies import Sign, range_to_skip

PROGRESS_EXPONENT = math.log(0.7) / math.log(0.5)


def price_of(situation: Situation, remedy: Remedy, *, for_good: bool) -> Mapping[str, float]:
    """The price of a remedy.

    **The model of progress.** YaLM-100B lost about 30 % of its progress by halving the learning
    rate. Progress per step is therefore taken as (rate / asked rate)^p with 0.5^p = 0.7, p = 0.515.
    A lowered rate is expected to go back up by one `raise_factor` every `raise_after` healthy
    steps, so that the price of lowering is what is lost until then, or until the end of the run. A
    warm-up costs half its steps, a tighter clip nothing: it binds in bad steps only. Passed-over
    data costs no steps; other data is read instead. With `for_good` its settings are what is asked
    for from now on, as a fallback's are.

    Returns:
        `steps_lost` to be made again, `seconds_lost` on them, `blocks_skipped`, `steps_lost_later`
        (full steps' worth of progress; below 0 where a raise gains some), `seconds_lost_later`.
    """
    known = rates(situation)
    begin = remedy.rollback.step if remedy.rollback else situation.step
    total = situation.settings.total_steps()
    left = None if total is None else max(total - begin, 0)
    new = float(remedy.settings.get(PATH, known.now))
    factor = 1.0 if for_good else situation.limits.raise_factor

    def cost(rate: float) -> float:
        return cost_of_rate(rate, known, factor, situation.sizes.raise_after, left)

    lost = situation.step - begin
    later = cost(new) - cost(known.now) + remedy.rewarm_steps / 2
    if any(change.how != "raise" for change in remedy.undo):
        later = 0.0  # what somebody set just before the trouble is no pace to compare with
    return {
        "steps_lost": lost,
        "seconds_lost": round(lost * situation.seconds_per_step, 3),
        "blocks_skipped": remedy.skip[1] - remedy.skip[0] if remedy.skip else 0,
        "steps_lost_later": round(later, 1),
        "seconds_lost_later": round(later * situation.seconds_per_step, 3),
    }


def cost_of_rate(
    rate: float, known: Rates, raise_factor: float, raise_after: int, steps_left: int | None
) -> float:
    """Full steps' worth of progress lost by going on at a rate, compared with the one asked for.

    It rises by `raise_factor` (1: never) after every `raise_after` steps. Where nobody knows how
    many are left, only the way up counts.
    """
    lost, left = 0.0, math.inf if steps_left is None else float(steps_left)
    while rate < known.ceiling and left > 0 and raise_factor > 1:
        stretch = min(float(raise_after), left)
        lost += stretch * _lost_share(rate, known.requested)
        left -= stretch
        rate = min(rate * raise_factor, known.ceiling)
    if left < math.inf:
        lost += left * _lost_share(rate, known.requested)
    return lost


def _lost_share(rate: float, requested: float) -> float:
    return float(max(1 - (rate / requested) ** PROGRESS_EXPONENT, 0.0))


def what_is_wrong(finding: Finding) -> str:
    """`loss-spike at step 1,204, first sign at step 1,200`."""
    subject = f" of {finding.subject}" if finding.subject else ""
    return (
        f"{finding.kind}{subject} at step {finding.step:,}, "
        f"first sign at step {finding.first_step:,}"
    )


def what_is_done(remedy: Remedy, old: Mapping[str, Any]) -> str:
    """`back to step 1,100 (memory), pass over blocks 35,200–44,799, optim.lr 0.0006 → 0.0003`."""
    parts: list[str] = []
    if remedy.rollback is not None:
        parts.append(f"back to step {remedy.rollback.step:,} ({remedy.rollback.where})")
    if remedy.skip is not None:
        parts.append(f"pass over blocks {remedy.skip[0]:,}–{remedy.skip[1] - 1:,}")
    parts += [f"{path} {arrow(old[path], new)}" for path, new in remedy.settings.items()]
    parts += [f"reset the {what.replace('-', ' ')}" for what in remedy.reset]
    if remedy.rewarm_steps:
        parts.append(f"warm up over {remedy.rewarm_steps:,} steps")
    if "mask" in remedy.actions:
        parts.append("its update was held back, and training goes on")
    return ", ".join(parts) or "reported, nothing is changed"


def what_it_costs(price: Mapping[str, float]) -> str:
    """`costs 104 steps (12 s) now and about 30 later`; empty if it costs nothing."""
    now, later = price.get("steps_lost", 0), price.get("steps_lost_later", 0)
    parts = []
    if now > 0:
        parts.append(f"{now:,.0f} steps ({short_seconds(price['seconds_lost'])}) now")
    if later >= 1:
        parts.append(f"about {later:,.0f} steps' progress later")
    return f"costs {' and '.join(parts)}" if parts else ""


def draft(
    situation: Situation,
    remedy: Remedy,
    headline: str,
    *,
    cause: str,
    subject: str = "",
    sign: Sign | None = None,
    fallback: str = "",
    failed: tuple[float, ...] = (),
) -> Plan:
    """The plan that a remedy makes; the other arguments are as the fields of `Plan`."""
    values = situation.settings.model_dump(mode="json")
    old = {path: value_at(values, path) for path in remedy.settings}
    price = price_of(situation, remedy, for_good=bool(fallback))
    costs = what_it_costs(price)
    done = {of.name: getattr(remedy, of.name) for of in fields(Remedy)}
    return Plan(
        **done,
        cause=cause,
        subject=subject,
        first_step=sign.first_step if sign else 0,
        first_draw=sign.first_draw if sign else 0,
        old=old,
        price=price,
        fallback=fallback,
        failed=failed,
        headline=headline,
        reason=f"{headline}: {what_is_done(remedy, old)}" + (f"; {costs}" if costs else ""),
    )


_SEEN_IN_A_REPLAY = frozenset({"non-finite", "loss-spike", "gradient-spike", "divergence"})
"""Kinds of finding that a few steps show again. What grows slowly would take too many, and what
may be done about it needs no cause."""


def asks_for_cause(plan: Plan, limits: RecoverSection) -> bool:
    """Whether the cause is looked for before the plan is carried out."""
    if any(change.how != "raise" for change in plan.undo):
        return False  # what a person or a restart changed is undone whatever a replay tells
    # A tighter clip needs no cause, but does nothing about data that has changed for good.
    cures = plan.rollback is not None or not {"lower-lr", "tighten-clip"}.isdisjoint(plan.actions)
    last_resort = plan.stop or bool(plan.fallback)
    return limits.diagnose and cures and not last_resort and plan.cause in _SEEN_IN_A_REPLAY


def shaped(plan: Plan, verdict: Verdict, situation: Situation) -> Plan:
    """The plan that suits the cause; the ladder's own where the cause asks for nothing that is
    still possible.

    Data is passed over, at the learning rate as it is. A rate that is too high is lowered, and no
    data is passed over. Where longhaul itself, a kernel or a machine computes wrong numbers, the
    run stops for a person: every further step would be computed as wrongly, and neither other data
    nor a lower rate would mend it. Whatever stays undetermined is left to the ladder of the
    finding.
    """
    plan = replace(plan, verdict=verdict)
    match verdict.cause:
        case "undetermined":
            return plan
        case "data" if verdict.lasting:
            return _of_lasting_data(plan, verdict, situation)
        case "data":
            to = plan.rollback
            skip = range_to_skip(situation, plan, to) if to else None
            remedy = Remedy(("rollback", "skip"), to, skip) if skip else None
        case "hyper-parameter" if plan.undo:
            return plan  # the rate before the raise is one that held
        case "hyper-parameter":
            remedy = _of_rate(plan, verdict, situation)
        case _:
            return _stop(plan, verdict, situation)
    if remedy is None:
        return plan
    headline = f"{plan.headline}, because of the {_WORDS[verdict.cause]}"
    failed: tuple[float, ...] = ()
    if verdict.cause == "hyper-parameter":
        rate = in_force(situation.settings, plan.first_step)
        failed = tuple(sorted({rate, rate * verdict.evidence.get("too_high", 1.0)}))
    return _redrafted(plan, remedy, situation, headline, failed)


def verdict_in(data: Mapping[str, Any]) -> Verdict | None:
    """The verdict that an event `cause` tells of; None if it makes no sense."""
    cause = data.get("cause")
    if cause not in CAUSES:
        return None
    evidence = {name: float(value) for name, value in data.get("evidence", {}).items()}
    return Verdict(cause, str(data.get("rung", "")), str(data.get("reason", "")), evidence)


_WORDS = {"data": "data", "hyper-parameter": "learning rate"}


def _of_lasting_data(plan: Plan, verdict: Verdict, situation: Situation) -> Plan:
    """Going on, as there is no other data to be had, and a lower rate would only learn it later."""
    stop = situation.limits.stop_for_surroundings
    remedy = Remedy(("stop",) if stop else ("accept",))
    drafted = _redrafted(plan, remedy, situation, plan.headline)
    then = (
        "stopped for a person to look, as recover.stop_for_surroundings asks for it"
        if stop
        else "training goes on, and losses are judged by their new level"
    )
    return replace(drafted, stop=stop, reason=f"{plan.headline}: {verdict.sentence}; {then}")


def _of_rate(plan: Plan, verdict: Verdict, situation: Situation) -> Remedy | None:
    # Where half of the rate shows it too, lowering to half would only lead here again: replays have
    # found the rate that works, if need be below the floor of ladders, which only halve.
    found, known = verdict.evidence.get("factor", 1.0), rates(situation)
    new = known.lowered(situation.limits.lr_factor)
    if found < situation.limits.lr_factor:
        new = known.now * found
    if new is None:
        return None
    others = [action for action in plan.actions if action not in ("skip", "skip-batch", "lower-lr")]
    place = 1 if "rollback" in others else 0
    actions = (*others[:place], "lower-lr", *others[place:])
    settings = {**plan.settings, PATH: new}
    return Remedy(actions, plan.rollback, None, settings, plan.reset, plan.rewarm_steps)


def _stop(plan: Plan, verdict: Verdict, situation: Situation) -> Plan:
    """Going back is part of it, so that whoever has mended it goes on from before the harm."""
    remedy = Remedy(("rollback", "stop") if plan.rollback else ("stop",), plan.rollback)
    stop = _redrafted(plan, remedy, situation, plan.headline)
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
    plan: Plan, remedy: Remedy, situation: Situation, headline: str, failed: tuple[float, ...] = ()
) -> Plan:
    redrafted = draft(
        situation, remedy, headline,
        cause=plan.cause, subject=plan.subject, sign=plan, failed=failed,
    )  # fmt: skip
    return replace(redrafted, verdict=plan.verdict)
