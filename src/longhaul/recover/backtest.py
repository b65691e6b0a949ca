"""What other limits or another policy would have found and done in a run that was.

Records are all there is: how training would have gone on after an action that was not taken,
nobody knows. A decision is therefore compared up to the point where the two part; from there until
the run itself takes another turn (a rollback, a change, a restart) findings are still told, and
decisions are not. Nor can steps be computed again: the verdict on a cause is the one that the run
came to there, if it looked for one. Good states are those that the journal tells of: checkpoints
that were read back, and the snapshots in memory that the settings ask for.

Enters: the records of a run, its recipe, limits. Leaves: a `Backtest`.
Never knows: files, tensors.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any, TypeGuard

from longhaul.config.diagnose import DiagnoseSection
from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.recover import FallbackSection, RecoverSection
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.diagnose.cause import Verdict
from longhaul.diagnose.diagnosis import Diagnosis
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.logbook.timeline import STEP_BUCKETS
from longhaul.recover.plan import WHO, Plan, Safe, Situation
from longhaul.recover.policy import LOOK_EVERY_STEPS, Policy
from longhaul.recover.probation import Course, good_states
from longhaul.recover.shape import asks_for_cause, shaped, verdict_in
from longhaul.recover.sizes import sizes_of

_SNAPSHOTS = 8
"""As many as the trainer keeps in memory when there is room."""
_RECENT_STEPS = 64
"""Steps of which the usual pace and gradient norm are taken."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A point at which the run changed its course, or would have."""

    step: int
    segment: str
    findings: tuple[Finding, ...]
    """That would have been told there."""
    would: Plan | None
    """What would have been decided; None for nothing."""
    live: Decision | None = None
    """What the policy had decided; None for nothing."""

    @property
    def steps_lost_live(self) -> int:
        """Steps that the run went back over."""
        back = self.live.data.get("rollback") if self.live else None
        return int(back["from"]) - int(back["to"]) if back else 0

    @property
    def steps_lost(self) -> int:
        """Steps that it would have gone back over."""
        return self.step - self.would.rollback.step if self.would and self.would.rollback else 0


@dataclass(frozen=True, slots=True)
class _Draft:
    """A plan whose cause was perhaps looked for: the verdict follows in the journal."""

    plan: Plan
    situation: Situation
    record: StepRecord
    findings: tuple[Finding, ...]

    @property
    def border(self) -> int:
        """Step at which it was drafted live; steps up to it were under way already."""
        return self.record.step + self.record.lag_steps


@dataclass(frozen=True, slots=True)
class Backtest:
    """The outcome."""

    steps: int
    """Step records read."""
    findings: tuple[Finding, ...]
    """That would have been told."""
    live_findings: tuple[Finding, ...]
    """That were told."""
    turns: tuple[Turn, ...]

    @property
    def steps_saved(self) -> int:
        """Steps the run went back over, less those it would have."""
        return sum(turn.steps_lost_live - turn.steps_lost for turn in self.turns)


def replay(
    records: Iterable[Record],
    recipe: Recipe,
    detectors: DiagnoseSection,
    limits: RecoverSection,
    fallbacks: tuple[FallbackSection, ...] = (),
) -> Backtest:
    """Judge and decide a whole journal again.

    Args:
        records: of a run, in the journal's order.
        recipe: as asked for; what people set later is in the records.
        detectors: limits of the judgement.
        limits: ladders, lengths and budgets of the policy.
        fallbacks: its plans B.
    """
    run = _Rerun(recipe, detectors, limits, fallbacks)
    for record in records:
        run.take(record)
    run.settle()
    return Backtest(run.steps, tuple(run.found), tuple(run.told), tuple(run.turns))


class _Rerun:
    """Takes in records one by one."""

    def __init__(
        self,
        recipe: Recipe,
        detectors: DiagnoseSection,
        limits: RecoverSection,
        fallbacks: tuple[FallbackSection, ...],
    ) -> None:
        self.steps = 0
        self.found: list[Finding] = []
        self.told: list[Finding] = []
        self.turns: list[Turn] = []
        self._recipe = recipe
        self._diagnosis = Diagnosis(detectors, recipe.total_steps(), recipe.optim.loss_scale.floor)
        self._policy = Policy(limits, fallbacks)
        self._limits = limits
        self._ledger = LedgerState()
        self._course = Course()
        self._apart = False
        """The run did not do what would have been done, and has taken no other turn since."""
        self._draft: _Draft | None = None
        self._settings: tuple[dict[str, Any], Recipe] = ({}, recipe)
        self._safe: dict[tuple[int, str], Safe] = {}
        self._draws: dict[int, int] = {}
        self._norms: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)

    def take(self, record: Record) -> None:
        """One more record."""
        if self._draft is not None and _is_past(record, self._draft):
            self.settle(verdict_in(record.data) if _tells_cause(record) else None)
        if isinstance(record, Finding):
            self.told.append(record)
            return
        if isinstance(record, Decision):
            self._decided(record)
            return
        if isinstance(record, StepRecord):
            self._stepped(record)
        elif record.kind == "checkpoint":
            self._saved(record)
        elif record.kind == "segment-opened":
            self._apart = False
            self._back_to(record.step)
        if findings := self._diagnosis.observe(record):
            self.found += findings
            for finding in findings:
                self._course = self._course.after(finding)
        rested = bool(self._ledger.recoveries) and record.step % LOOK_EVERY_STEPS == 0
        if isinstance(record, StepRecord) and (findings or rested):
            self._decide(record, findings)

    def _stepped(self, record: StepRecord) -> None:
        self.steps += 1
        if record.step <= self._course.step:
            self._back_to(record.step - 1)
        self._course = self._course.after(record)
        if not record.masked:
            self._norms.append(record.gradient_norm)
        self._seconds.append(sum(record.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS))
        if record.save_due:
            self._draws[record.step] = record.next_draw
        every = self._recipe.checkpoint.snapshot_interval_steps
        if every and self.steps == 1:
            self._remember(record.step - 1, record.draw)  # the trainer begins with one
        if every and record.step % every == 0:
            self._remember(record.step, record.next_draw)

    def _remember(self, step: int, draw: int) -> None:
        self._safe[step, "memory"] = Safe(step, draw, "memory")
        in_memory = sorted(key for key in self._safe if key[1] == "memory")
        for key in in_memory[:-_SNAPSHOTS]:
            del self._safe[key]

    def _back_to(self, step: int) -> None:
        if step < self._course.step:
            self._course = self._course.back_to(step)
            self._safe = {key: safe for key, safe in self._safe.items() if safe.step <= step}

    def _saved(self, event: Event) -> None:
        if event.data.get("health") == "verified" and event.step in self._draws:
            draw, manifest = self._draws.pop(event.step), str(event.data.get("manifest", ""))
            self._safe[event.step, "disk"] = Safe(event.step, draw, "disk", manifest)

    def _decided(self, decision: Decision) -> None:
        """What people decided holds here too; what the policy decided is compared."""
        if decision.kind != "recover" or decision.who != WHO:
            if decision.kind != "checkpoint-health":
                self._ledger = fold(self._ledger, decision)
            return
        last = self.turns[-1] if self.turns else None
        if last is not None and self._answers(decision, last):
            self.turns[-1] = replace(last, live=decision)
        else:
            self.turns.append(Turn(decision.step, decision.segment, (), None, decision))

    def _answers(self, decision: Decision, turn: Turn) -> bool:
        """Whether the run decided the same matter there."""
        if turn.would is None or turn.live is not None or turn.segment != decision.segment:
            return False
        return self._apart or turn.would.cause == decision.data.get("cause")

    def _decide(self, record: StepRecord, findings: tuple[Finding, ...]) -> None:
        if self._apart or self._draft is not None:
            return
        situation = self._situation(record)
        plan = self._policy.decide(situation, findings)
        if plan is None:
            return
        self._draft = _Draft(plan, situation, record, findings)
        if not asks_for_cause(plan, self._limits):
            self.settle()

    def settle(self, verdict: Verdict | None = None) -> None:
        """Decide as drafted, or as the verdict has it."""
        draft, self._draft = self._draft, None
        if draft is None:
            return
        plan, record, findings = draft.plan, draft.record, draft.findings
        if verdict is not None:
            plan = shaped(plan, verdict, draft.situation, self._limits)
        data = plan.decision_data(record.step)
        decision = Decision(
            kind="recover", attempt=record.attempt, segment=record.segment, step=record.step,
            time=record.time, who=WHO, reason=plan.reason, data=data,
        )  # fmt: skip
        self._ledger = fold(self._ledger, decision)
        self.turns.append(Turn(record.step, record.segment, findings, plan))
        self._apart = plan.effects or plan.stop

    def _situation(self, record: StepRecord) -> Situation:
        overrides = self._ledger.overrides_at(record.step)
        if overrides != self._settings[0]:
            self._settings = overrides, with_overrides(self._recipe, overrides)
        settings = self._settings[1]
        batch = settings.batch_at(record.step)
        probation = sizes_of(self._limits, settings.total_steps()).probation
        return Situation(
            step=record.step,
            draw=record.next_draw,
            blocks_per_step=batch.sequences * batch.sequence_length // settings.block_length(),
            seconds_per_step=fmean(self._seconds),
            settings=settings,
            ledger=self._ledger,
            good=good_states(self._safe.values(), self._course, probation),
            quiet_since=self._course.quiet_since,
            gradient_norm=median(self._norms) if self._norms else None,
        )


def _tells_cause(record: Record) -> TypeGuard[Event]:
    return isinstance(record, Event) and record.kind == "cause"


def _is_past(record: Record, draft: _Draft) -> bool:
    """Whether a draft is settled before this record, or by it."""
    if isinstance(record, StepRecord):
        return record.segment != draft.record.segment or record.step > draft.border
    if isinstance(record, Decision):
        return record.kind == "recover"
    return isinstance(record, Event) and record.kind in ("cause", "segment-opened")
