"""The policy: findings in, a plan with its reason out.

A pure function of the situation and the findings. What it remembers is in the ledger: which cause
led to what, how often, at which price. So neither a rollback nor a crash makes it begin anew.
Ladders and actions are declared in `config/recover.py`; `remedies.py` says what an action does.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

from longhaul.config.recover import SOUND_KINDS, Action, Ladder, LaddersSection
from longhaul.core.records import Finding, Safe
from longhaul.logbook.ledger import Recovery
from longhaul.recover import learning_rate
from longhaul.recover.draft import draft, what_is_wrong
from longhaul.recover.learning_rate import PATH, rates
from longhaul.recover.plan import (
    FREE,
    WHO,
    Plan,
    Remedy,
    Situation,
    own_recoveries,
    since_fallback,
    spent,
)
from longhaul.recover.probation import is_worse
from longhaul.recover.remedies import fallback_remedy, remedy_of, safe_before, same_data
from longhaul.recover.suspect import suspicion

_BY_URGENCY = (
    "non-finite",
    "loss-scale-collapse",
    "divergence",
    "loss-spike",
    "gradient-spike",
    "growth",
)
"""Findings about the weights; of several as severe the first is the cause."""
_ACTED_ON_WARNING = frozenset({"growth", "gradient-spike", "loss-scale-collapse"})
"""Here a warning comes while the loss is still fine, which is the best time to act."""
_STANDS_SINCE, _DANGER_LINE = "stands_since", "danger_line"
"""Evidence of a gauge that is high without a trend, and of one that may come to an alarm."""
_OF_DATA = frozenset({"loss-spike", "gradient-spike", "non-finite"})
"""Kinds that one batch can bring about: what comes again with the same data is of the data."""
LOOK_EVERY_STEPS = 10
"""Steps between two looks at what time brings, such as a rate that may rise; live or replayed."""
PROBATION = "probation"
"""Cause of a plan that health led to."""


def decide(situation: Situation, findings: Sequence[Finding] = ()) -> Plan | None:
    """One plan for all findings since the last boundary; None if nothing is to be done.

    Without findings it is asked whether health allows a lowered learning rate to rise again.
    """
    present = [finding for finding in findings if _concerns(situation, finding)]
    doubts = [finding for finding in present if _doubted(situation, finding)]
    harmful = [f for f in present if _acted_on(f) and f not in doubts]
    if harmful:
        sign = min(harmful, key=lambda finding: (finding.first_step, finding.first_draw))
        plan: Plan | None = _act(situation, min(harmful, key=_urgency), sign)
    elif present:
        plan = _emit(situation, present, doubts)
    else:
        plan = _raise(situation)
    if plan is not None and situation.limits.mode == "report" and (plan.effects or plan.stop):
        return _only_told(plan)
    return plan


def _concerns(situation: Situation, finding: Finding) -> bool:
    """Whether it still holds, and is not one that a change in place is given time for."""
    if finding.severity == "notice" or finding.step > situation.step:
        return False  # what lies beyond this step was rolled back
    if finding.severity == "alarm" or finding.kind in SOUND_KINDS:
        return True
    return all(r.actions == ("report",) for r in _just_made(situation, finding))


def _just_made(situation: Situation, finding: Finding) -> list[Recovery]:
    """Recoveries of its kind without a rollback, no longer ago than a change is given time."""
    return [
        recovery
        for recovery in own_recoveries(situation.ledger)
        if recovery.cause == finding.kind
        and recovery.to_step is None
        and 0 <= situation.step - recovery.step < situation.sizes.settle
    ]


def _doubted(situation: Situation, finding: Finding) -> bool:
    """Whether the loss speaks against a warning that is ahead of it, where that alone tells no
    harm: what a person changed on purpose may do good, and a gauge that is only high, without a
    trend or an alarm to come, may do nothing. Then only an alarm acts.
    """
    if finding.severity == "alarm" or finding.kind not in _ACTED_ON_WARNING:
        return False
    remedy = suspicion(situation, finding).remedy
    since = finding.evidence.get(_STANDS_SINCE)
    if remedy is not None:
        since = min((c.step for c in remedy.undo if c.how != "raise"), default=None)
    elif _DANGER_LINE in finding.evidence or _climbed(situation, finding):
        since = None
    if since is None:
        return False
    schedule = situation.settings.optim.schedule
    warm = schedule.from_step + schedule.warmup_steps
    return is_worse(situation.losses, int(since), warm) is False


def _act(situation: Situation, cause: Finding, sign: Finding) -> Plan:
    """Undo what was changed just before; or else climb the cause's ladder."""
    suspected = suspicion(situation, cause)
    if suspected.remedy is None:
        if suspected.surroundings and situation.limits.stop_for_surroundings:
            lack = f"it came {suspected.words}, and recover.stop_for_surroundings asks for it"
            return _stop(cause, sign, lack)
        return _climb(situation, cause, sign, suspected.words)
    return _draft(situation, cause, cause, suspected.remedy, suspected.words)


def _climb(situation: Situation, cause: Finding, sign: Finding, after: str = "") -> Plan:
    """The next rung of the cause's ladder that can still do something and is paid for."""
    sizes = situation.sizes
    ladder = ladder_of(situation.limits.ladder, cause.kind)
    climbed = _climbed(situation, cause)
    # What a rollback did not help is older than it looked: go back further every time.
    safe = safe_before(situation.good, sign.first_step, sizes.margin * (1 + climbed))
    lack = "nothing on its ladder is left to try"
    for rung in ladder[min(climbed, len(ladder) - 1) :]:
        if "stop" in rung:
            return _stop(cause, sign, "its ladder says so")
        if "fallback" in rung:
            lack = "its ladder says so"
            break
        tried, why = _instead_of(rung, situation, cause, sign, safe)
        remedy = remedy_of(tried, situation, sign, safe)
        if remedy is None:
            continue
        no = spent(situation)
        if no and not FREE.issuperset(remedy.actions):
            lack = no
            break
        if "rollback" in tried and remedy.rollback is None:
            why = "no good state lies before it"
        elif climbed and not why:
            why = f"number {climbed + 1} within {sizes.cooldown:,} steps"
        why = ", ".join(filter(None, (after, why)))
        return _draft(situation, cause, sign, remedy, why)
    return _last_resort(situation, cause, sign, safe, lack)


def _climbed(situation: Situation, cause: Finding) -> int:
    """Rungs of its ladder that the cause has climbed lately. A report is one only where the
    ladder asks for it: nothing was tried.
    """
    ladder, climbed = ladder_of(situation.limits.ladder, cause.kind), 0
    for recovery in _earlier(since_fallback(situation.ledger), cause, situation):
        rung = ladder[min(climbed, len(ladder) - 1)]
        climbed += recovery.actions != ("report",) or rung == ("report",)
    return climbed


def _instead_of(
    rung: tuple[Action, ...], situation: Situation, cause: Finding, sign: Finding, safe: Safe | None
) -> tuple[tuple[Action, ...], str]:
    """The rung, or what is done in its place and why: a rate that somebody raised since is lowered
    before any data is passed over, and data that spikes again after a rollback is passed over
    (PaLM).
    """
    if "rollback" not in rung:
        return rung, ""
    who = learning_rate.raised_since(situation, safe.step) if safe else ""
    if who and "lower-lr" not in rung:
        return ("rollback", "lower-lr"), f"after {who} raised {PATH}"
    known = same_data(situation.ledger, sign, situation.blocks_per_step)
    if known and "skip" not in rung and cause.kind in _OF_DATA:
        by_skip: tuple[Action, ...] = ("rollback", "skip")
        remedy = remedy_of(by_skip, situation, sign, safe)
        if remedy is not None and remedy.skip is not None:
            return by_skip, "with the same data as before"
    return rung, ""


def _last_resort(
    situation: Situation, cause: Finding, sign: Finding, safe: Safe | None, lack: str
) -> Plan:
    fallbacks = situation.settings.fallback
    taken = sum(bool(recovery.fallback) for recovery in own_recoveries(situation.ledger))
    if taken < len(fallbacks):
        entry = fallbacks[taken]
        remedy = fallback_remedy(entry, situation, sign, safe)
        why = f"{lack}, hence plan B, {entry.name}"
        return _draft(situation, cause, sign, remedy, why, entry.name)
    if fallbacks:
        lack += ", and no fallback is left"
    return _stop(cause, sign, lack)


def _emit(
    situation: Situation, present: Sequence[Finding], doubts: Sequence[Finding]
) -> Plan | None:
    """Findings that harm no weight: what is already masked, and what people should know."""
    plans = list[Plan]()
    for finding in present:
        if finding.kind == "non-finite":
            plans.append(_draft(situation, finding, finding, Remedy(("mask",)), ""))
        elif finding.kind in SOUND_KINDS and not _told_before(situation, finding):
            after = suspicion(situation, finding).words
            plans.append(_climb(situation, finding, finding, after))
        elif finding in doubts and not _just_made(situation, finding):
            after = suspicion(situation, finding).words
            why = ", ".join(filter(None, (after, "but the loss is no worse than before")))
            plans.append(_draft(situation, finding, finding, Remedy(("report",)), why))
    return min(plans, key=lambda plan: not (plan.effects or plan.stop), default=None)


def _told_before(situation: Situation, finding: Finding) -> bool:
    """Whether its ladder ends in a report, which was made."""
    ladder = ladder_of(situation.limits.ladder, finding.kind)
    made = _earlier(own_recoveries(situation.ledger), finding, situation)
    return ladder[-1] == ("report",) and len(made) >= len(ladder)


def _raise(situation: Situation) -> Plan | None:
    """One step back to the learning rate that was asked for, after a healthy probation."""
    recoveries = situation.ledger.recoveries
    if not recoveries:
        return None
    known = rates(situation)
    new = known.raised(situation.limits.raise_factor)
    if new is None:
        return None
    # What somebody changed and is undone has nothing to do with how long the rate has held.
    own = [
        recovery
        for recovery in recoveries
        if recovery.who != WHO
        or not recovery.undo
        or any(c["how"] == "raise" and PATH in c["settings"] for c in recovery.undo)
    ]
    last = (own or recoveries)[-1]
    begin = max(situation.quiet_since, last.step if last.to_step is None else last.to_step)
    if situation.step - begin < situation.sizes.raise_after << known.failed_raises:
        return None
    remedy = Remedy(("raise-lr",), settings={PATH: new})
    headline = f"healthy for {situation.step - begin:,} steps"
    return draft(situation, remedy, headline, cause=PROBATION)


def _draft(
    situation: Situation,
    cause: Finding,
    sign: Finding,
    remedy: Remedy,
    why: str,
    fallback: str = "",
) -> Plan:
    headline = what_is_wrong(cause) + (f", {why}" if why else "")
    raised = any(change.how == "raise" for change in remedy.undo)
    failed = raised or "lower-lr" in remedy.actions
    rate = learning_rate.in_force(situation.settings, sign.first_step)
    return draft(
        situation, remedy, headline,
        cause=cause.kind, subject=cause.subject, sign=sign, fallback=fallback,
        failed=(rate,) if failed else (),
    )  # fmt: skip


def ladder_of(ladders: LaddersSection, kind: str) -> Ladder:
    """The ladder of a kind of finding; without a rung there is nothing to do but report."""
    ladder: Ladder = getattr(ladders, kind.replace("-", "_"))
    return ladder or (("report",),)


def _acted_on(finding: Finding) -> bool:
    if finding.kind not in _BY_URGENCY:
        return False
    return finding.severity == "alarm" or finding.kind in _ACTED_ON_WARNING


def _urgency(finding: Finding) -> tuple[bool, int, int]:
    return finding.severity != "alarm", _BY_URGENCY.index(finding.kind), finding.first_step


def _earlier(
    recoveries: Sequence[Recovery], finding: Finding, situation: Situation
) -> list[Recovery]:
    """Recoveries of late for the same cause. Of reports only those on the same subject count:
    another source or role is another story. An update that the gate held back is no rung, nor is a
    change that was undone.
    """
    begin, sound = situation.step - situation.sizes.cooldown, finding.kind in SOUND_KINDS
    return [
        recovery
        for recovery in recoveries
        if recovery.cause == finding.kind
        and recovery.step >= begin
        and recovery.actions != ("mask",)
        and not recovery.undo
        and (recovery.subject == finding.subject or not sound)
    ]


def _stop(cause: Finding, sign: Finding, lack: str) -> Plan:
    return Plan(
        cause=cause.kind,
        subject=cause.subject,
        first_step=sign.first_step,
        first_draw=sign.first_draw,
        actions=("stop",),
        stop=True,
        reason=(
            f"{what_is_wrong(cause)}: stopped for a person to look, because {lack}. "
            "`longhaul set` other settings (recover.* are the limits), or `longhaul fork` from "
            "a good checkpoint, then start again"
        ),
    )


def _only_told(plan: Plan) -> Plan:
    """The same decision when nobody may act: it is written down and nothing else."""
    told = Remedy(("report",), undo=plan.undo)
    return replace(
        plan,
        **{of.name: getattr(told, of.name) for of in fields(Remedy)},
        old={},
        fallback="",
        stop=False,
        reason=f"would have done, but recover.mode is report: {plan.reason}",
    )
