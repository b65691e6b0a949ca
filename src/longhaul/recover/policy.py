"""The policy: findings in, a plan with its reason out.

A pure function of the situation and the findings. What it remembers is in the ledger: which cause
led to what, how often, at which price. So neither a rollback nor a crash makes it begin anew.
Ladders and actions are declared in `config/recover.py`; `remedies.py` says what an action does.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from longhaul.config.recover import (
    SOUND_KINDS,
    Action,
    FallbackSection,
    Ladder,
    LaddersSection,
    RecoverSection,
)
from longhaul.core.records import Finding
from longhaul.logbook.ledger import Recovery
from longhaul.recover import learning_rate
from longhaul.recover.draft import draft, what_is_wrong
from longhaul.recover.learning_rate import PATH, rates
from longhaul.recover.plan import (
    FREE,
    WHO,
    Plan,
    Situation,
    Sizes,
    fallbacks_taken,
    own_recoveries,
    recent,
    since_fallback,
    sizes_of,
    spent,
)
from longhaul.recover.probation import is_worse
from longhaul.recover.remedies import (
    Remedy,
    RemedyOptions,
    fallback_remedy,
    remedy_of,
    safe_before,
    same_data,
)
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
"""Steps between two looks at what only time brings about, such as a rate that may rise; live and
replayed alike."""
PROBATION = "probation"
"""Cause of a plan that health led to."""


class Policy:
    """What is done about findings.

    Args:
        limits: ladders, lengths and budgets in force.
        fallbacks: plans B, in their order.
    """

    def __init__(self, limits: RecoverSection, fallbacks: tuple[FallbackSection, ...] = ()) -> None:
        self._limits = limits
        self._fallbacks = fallbacks

    def decide(self, situation: Situation, findings: Sequence[Finding] = ()) -> Plan | None:
        """One plan for all findings since the last boundary; None if nothing is to be done.

        Without findings it is asked whether health allows a lowered learning rate to rise again.
        """
        present = [finding for finding in findings if self._concerns(situation, finding)]
        doubts = [finding for finding in present if self._doubted(situation, finding)]
        harmful = [f for f in present if _acted_on(f) and f not in doubts]
        if harmful:
            plan: Plan | None = self._act(
                situation, min(harmful, key=_urgency), min(harmful, key=_sign)
            )
        elif present:
            plan = self._emit(situation, present, doubts)
        else:
            plan = self._raise(situation)
        if plan is not None and self._limits.mode == "report" and (plan.effects or plan.stop):
            return _only_told(plan)
        return plan

    def _concerns(self, situation: Situation, finding: Finding) -> bool:
        """Whether it still holds, and is not one that a change in place is given time for."""
        if finding.severity == "notice" or finding.step > situation.step:
            return False  # what lies beyond this step was rolled back
        if finding.severity == "alarm" or finding.kind in SOUND_KINDS:
            return True
        return all(r.actions == ("report",) for r in self._just_made(situation, finding))

    def _just_made(self, situation: Situation, finding: Finding) -> list[Recovery]:
        """Recoveries of its kind without a rollback, no longer ago than a change is given time."""
        settle = self._sizes(situation).settle
        return [
            recovery
            for recovery in own_recoveries(situation.ledger)
            if recovery.cause == finding.kind
            and recovery.to_step is None
            and 0 <= situation.step - recovery.step < settle
        ]

    def _doubted(self, situation: Situation, finding: Finding) -> bool:
        """Whether the loss speaks against a warning that is ahead of it, where that alone tells no
        harm: what a person changed on purpose may do good, and a gauge that is only high, without a
        trend or an alarm to come, may do nothing. Then only an alarm acts.
        """
        if finding.severity == "alarm" or finding.kind not in _ACTED_ON_WARNING:
            return False
        sizes, settings = self._sizes(situation), situation.settings
        remedy = suspicion(situation, finding, self._limits, sizes).remedy
        since = finding.evidence.get(_STANDS_SINCE)
        if remedy is not None:
            since = min((c.step for c in remedy.undo if c.how != "raise"), default=None)
        elif _DANGER_LINE in finding.evidence or self._climbed(situation, finding, sizes):
            since = None
        if since is None:
            return False
        schedule = settings.optim.schedule
        warm = schedule.from_step + schedule.warmup_steps
        return is_worse(situation.losses, int(since), warm) is False

    def _act(self, situation: Situation, cause: Finding, sign: Finding) -> Plan:
        """Undo what was changed just before; or else climb the cause's ladder."""
        sizes = self._sizes(situation)
        suspected = suspicion(situation, cause, self._limits, sizes)
        if suspected.remedy is None:
            if suspected.surroundings and self._limits.stop_for_surroundings:
                lack = f"it came {suspected.words}, and recover.stop_for_surroundings asks for it"
                return _stop(cause, sign, lack)
            return self._climb(situation, cause, sign, suspected.words)
        options = RemedyOptions(situation, self._limits, sizes, cause, sizes.margin)
        return self._draft(options, cause, suspected.remedy, suspected.words)

    def _climb(self, situation: Situation, cause: Finding, sign: Finding, after: str = "") -> Plan:
        """The next rung of the cause's ladder that can still do something and is paid for."""
        sizes = self._sizes(situation)
        ladder = ladder_of(self._limits.ladder, cause.kind)
        climbed = self._climbed(situation, cause, sizes)
        # What a rollback did not help is older than it looked: go back further every time.
        options = RemedyOptions(situation, self._limits, sizes, sign, sizes.margin * (1 + climbed))
        lack = "nothing on its ladder is left to try"
        for rung in ladder[min(climbed, len(ladder) - 1) :]:
            if "stop" in rung:
                return _stop(cause, sign, "its ladder says so")
            if "fallback" in rung:
                lack = "its ladder says so"
                break
            tried, why = self._for_raised_rate(rung, options) or self._for_same_data(
                rung, cause, options
            )
            remedy = remedy_of(tried, options)
            if remedy is None:
                continue
            no = spent(situation, self._limits, sizes.cooldown)
            if no and not FREE.issuperset(remedy.actions):
                lack = no
                break
            if "rollback" in tried and remedy.rollback is None:
                why = "no good state lies before it"
            elif climbed and not why:
                why = f"number {climbed + 1} within {sizes.cooldown:,} steps"
            why = ", ".join(filter(None, (after, why)))
            return self._draft(options, cause, remedy, why)
        return self._last_resort(options, cause, lack)

    def _climbed(self, situation: Situation, cause: Finding, sizes: Sizes) -> int:
        """Rungs of its ladder that the cause has climbed lately. A report is one only where the
        ladder asks for it: nothing was tried.
        """
        ladder, climbed = ladder_of(self._limits.ladder, cause.kind), 0
        for recovery in _earlier(since_fallback(situation.ledger), cause, situation, sizes):
            rung = ladder[min(climbed, len(ladder) - 1)]
            climbed += recovery.actions != ("report",) or rung == ("report",)
        return climbed

    def _for_raised_rate(
        self, rung: tuple[Action, ...], options: RemedyOptions
    ) -> tuple[tuple[Action, ...], str] | None:
        """A rate that somebody raised since is lowered before any data is passed over."""
        situation, sign = options.situation, options.sign
        to = safe_before(situation.good, sign.first_step, options.margin_steps)
        who = learning_rate.raised_since(situation, to.step) if to else ""
        if not who or "rollback" not in rung or "lower-lr" in rung:
            return None
        return ("rollback", "lower-lr"), f"after {who} raised {PATH}"

    def _for_same_data(
        self, rung: tuple[Action, ...], cause: Finding, options: RemedyOptions
    ) -> tuple[tuple[Action, ...], str]:
        """The same data spikes again after a rollback: it is passed over (PaLM)."""
        situation = options.situation
        known = same_data(situation.ledger, options.sign, situation.blocks_per_step)
        if not known or "rollback" not in rung or "skip" in rung or cause.kind not in _OF_DATA:
            return rung, ""
        by_skip: tuple[Action, ...] = ("rollback", "skip")
        remedy = remedy_of(by_skip, options)
        if remedy is None or remedy.skip is None:
            return rung, ""
        return by_skip, "with the same data as before"

    def _last_resort(self, options: RemedyOptions, cause: Finding, lack: str) -> Plan:
        taken = fallbacks_taken(options.situation.ledger)
        if taken < len(self._fallbacks):
            entry = self._fallbacks[taken]
            remedy = fallback_remedy(entry, options)
            why = f"{lack}, hence plan B, {entry.name}"
            return self._draft(options, cause, remedy, why, entry.name)
        if self._fallbacks:
            lack += ", and no fallback is left"
        return _stop(cause, options.sign, lack)

    def _emit(
        self, situation: Situation, present: Sequence[Finding], doubts: Sequence[Finding]
    ) -> Plan | None:
        """Findings that harm no weight: what is already masked, and what people should know."""
        sizes, plans = self._sizes(situation), list[Plan]()
        for finding in present:
            if finding.kind == "non-finite":
                options = RemedyOptions(situation, self._limits, sizes, finding, sizes.margin)
                plans.append(self._draft(options, finding, Remedy(("mask",)), ""))
            elif finding.kind in SOUND_KINDS and not self._told_before(situation, finding):
                after = suspicion(situation, finding, self._limits, sizes).words
                plans.append(self._climb(situation, finding, finding, after))
            elif finding in doubts and not self._just_made(situation, finding):
                after = suspicion(situation, finding, self._limits, sizes).words
                why = ", ".join(filter(None, (after, "but the loss is no worse than before")))
                options = RemedyOptions(situation, self._limits, sizes, finding, sizes.margin)
                plans.append(self._draft(options, finding, Remedy(("report",)), why))
        return min(plans, key=lambda plan: not (plan.effects or plan.stop), default=None)

    def _told_before(self, situation: Situation, finding: Finding) -> bool:
        """Whether its ladder ends in a report, which was made."""
        ladder = ladder_of(self._limits.ladder, finding.kind)
        own = own_recoveries(situation.ledger)
        made = _earlier(own, finding, situation, self._sizes(situation))
        return ladder[-1] == ("report",) and len(made) >= len(ladder)

    def _raise(self, situation: Situation) -> Plan | None:
        """One step back to the learning rate that was asked for, after a healthy probation."""
        recoveries = situation.ledger.recoveries
        if not recoveries:
            return None
        sizes = self._sizes(situation)
        known = rates(situation, self._limits)
        new = known.raised(self._limits.raise_factor)
        if new is None:
            return None
        # What somebody changed and is undone has nothing to do with how long the rate has held.
        own = [r for r in recoveries if r.who != WHO or not r.undo or PATH in _raised_by(r)]
        last = (own or recoveries)[-1]
        begin = max(situation.quiet_since, last.step if last.to_step is None else last.to_step)
        if situation.step - begin < sizes.raise_after << known.failed_raises:
            return None
        remedy = Remedy(("raise-lr",), settings={PATH: new})
        headline = f"healthy for {situation.step - begin:,} steps"
        return draft(situation, self._limits, sizes, remedy, headline, cause=PROBATION)

    def _draft(
        self, options: RemedyOptions, cause: Finding, remedy: Remedy, why: str, fallback: str = ""
    ) -> Plan:
        headline = what_is_wrong(cause) + (f", {why}" if why else "")
        raised = any(change.how == "raise" for change in remedy.undo)
        failed = raised or "lower-lr" in remedy.actions
        rate = learning_rate.in_force(options.situation.settings, options.sign.first_step)
        return draft(
            options.situation, self._limits, options.sizes, remedy, headline,
            cause=cause.kind, subject=cause.subject, sign=options.sign, fallback=fallback,
            failed=(rate,) if failed else (),
        )  # fmt: skip

    def _sizes(self, situation: Situation) -> Sizes:
        return sizes_of(self._limits, situation.settings.total_steps())


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


def _sign(finding: Finding) -> tuple[int, int]:
    return finding.first_step, finding.first_draw


def _earlier(
    recoveries: Sequence[Recovery], finding: Finding, situation: Situation, sizes: Sizes
) -> list[Recovery]:
    """Recoveries of late for the same cause. Of reports only those on the same subject count:
    another source or role is another story. An update that the gate held back is no rung, nor is a
    change that was undone.
    """
    made = recent(recoveries, finding.kind, situation.step, sizes.cooldown)
    made = [r for r in made if r.actions != ("mask",) and not r.undo]
    if finding.kind not in SOUND_KINDS:
        return made
    return [recovery for recovery in made if recovery.subject == finding.subject]


def _raised_by(recovery: Recovery) -> Iterable[str]:
    """Settings whose raise by the policy a recovery undid."""
    return (path for c in recovery.undo if c["how"] == "raise" for path in c["settings"])


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
    return replace(
        plan,
        actions=("report",),
        rollback=None,
        skip=None,
        settings={},
        old={},
        reset=(),
        rewarm_steps=0,
        fallback="",
        stop=False,
        reason=f"would have done, but recover.mode is report: {plan.reason}",
    )
