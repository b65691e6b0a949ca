"""The judgement of a live run: detectors, the course of training, and the policy, fed together.

Enters: every record, in the order of the journal. Leaves: findings, a plan where one is due, and
the checkpoints that have passed their probation.
Never knows: how a plan is carried out, or where records are kept.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean, median

from longhaul.config.diagnose import DiagnoseSection
from longhaul.config.recipe import Recipe
from longhaul.core.records import Event, Finding, Record, StepRecord
from longhaul.core.units import Seconds
from longhaul.diagnose.cause import Verdict
from longhaul.diagnose.diagnosis import Diagnosis
from longhaul.logbook.ledger import LedgerState
from longhaul.logbook.timeline import STEP_BUCKETS
from longhaul.recover.plan import Plan, Safe, Situation
from longhaul.recover.policy import Policy
from longhaul.recover.probation import Course, good_states
from longhaul.recover.shape import asks_for_cause, shaped
from longhaul.recover.sizes import sizes_of
from longhaul.train.state import Position

_RECENT_STEPS = 64
"""Steps that typical figures are taken from."""
_LINE_STEPS = 512
"""Records kept for who looks for a cause."""
_LOOK_EVERY = 10
"""Steps between two looks at what only time brings about: probation, a rate that may rise."""


class Judgement:
    """Judges one attempt.

    Args:
        settings: in force at its start.
        past: the run's last records, in order, from which its state is rebuilt; what they bring to
            light was told when it happened.
    """

    def __init__(self, settings: Recipe, past: Iterable[Record] = ()) -> None:
        self._settings = settings
        self._diagnosis = Diagnosis(*_judged_by(settings))
        self._course = Course()
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._norms: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._pending: list[Finding] = []
        self._line: deque[StepRecord] = deque(maxlen=_LINE_STEPS)
        self._looked = 0
        for record in past:
            self._observe(record)

    @staticmethod
    def records_needed(settings: Recipe) -> int:
        """How many of the run's last records rebuild its state; about half of them are steps."""
        return 2 * settings.diagnose.memory_steps

    def observe(self, record: StepRecord | Event) -> tuple[Finding, ...]:
        """What a record brings to light; the next `take` hands it out."""
        findings = self._observe(record)
        for finding in findings:
            self._course = self._course.after(finding)
        self._pending += findings
        return findings

    @property
    def line(self) -> tuple[StepRecord, ...]:
        """Records of the last steps that the run stands on, in order, without a gap."""
        return tuple(self._line)

    def seconds_per_step(self) -> Seconds:
        """Of a typical step; 0 before the first."""
        return fmean(self._seconds) if self._seconds else 0.0

    def take(self) -> tuple[Finding, ...]:
        """What came to light since the last call."""
        taken, self._pending = tuple(self._pending), []
        return taken

    def defer(self, findings: Sequence[Finding]) -> None:
        """Nothing could be done about these now: they are handed out again."""
        self._pending = [*findings, *self._pending]

    def decide(
        self,
        findings: Sequence[Finding],
        settings: Recipe,
        position: Position,
        ledger: LedgerState,
        states: Callable[[], Iterable[Safe]],
        cause_of: Callable[[Plan], Verdict],
    ) -> Plan | None:
        """What is to be done at this border.

        Args:
            findings: all that came to light since the last one.
            settings: in force for the next step.
            position: where the run stands.
            ledger: everything decided so far.
            states: every state that could be gone back to; asked only if somebody wants to know.
            cause_of: what led to a drafted plan; asked before anything is done about it.
        """
        self._take(settings)
        rested = bool(ledger.recoveries) and position.step % _LOOK_EVERY == 0
        if not findings and not rested:
            return None
        limits = settings.recover
        probation = sizes_of(limits, settings.total_steps()).probation
        good = good_states(states(), self._course, probation) if findings else ()
        stage = settings.batch_at(position.step)
        situation = Situation(
            step=position.step,
            draw=position.draw,
            blocks_per_step=stage.sequences * stage.sequence_length // settings.block_length(),
            seconds_per_step=self.seconds_per_step(),
            settings=settings,
            ledger=ledger,
            good=good,
            quiet_since=self._course.quiet_since,
            gradient_norm=median(self._norms) if self._norms else None,
        )
        plan = Policy(limits, settings.fallback).decide(situation, findings)
        if plan is None or not asks_for_cause(plan, limits):
            return plan
        return shaped(plan, cause_of(plan), situation, limits)

    def passed_probation(self, settings: Recipe, ledger: LedgerState) -> Iterator[tuple[int, str]]:
        """(step, manifest) of checkpoints that have become good; looked for now and then."""
        if self._course.step // _LOOK_EVERY == self._looked:
            return
        self._looked = self._course.step // _LOOK_EVERY
        probation = sizes_of(settings.recover, settings.total_steps()).probation
        for step, known in ledger.checkpoint_health.items():
            if known.health == "verified" and self._course.is_good(step, probation):
                yield step, known.manifest

    def _observe(self, record: Record) -> tuple[Finding, ...]:
        self._course = self._course.after(record)
        if isinstance(record, StepRecord):
            while self._line and self._line[-1].step >= record.step:
                self._line.pop()  # gone back over
            if self._line and self._line[-1].step != record.step - 1:
                self._line.clear()
            self._line.append(record)
            if not record.masked:
                self._norms.append(record.gradient_norm)
            self._seconds.append(sum(record.seconds.get(b, 0.0) for b in STEP_BUCKETS))
        return self._diagnosis.observe(record)

    def _take(self, settings: Recipe) -> None:
        if settings is not self._settings:
            before, self._settings = self._settings, settings
            if _judged_by(settings) != _judged_by(before):
                self._diagnosis.change(*_judged_by(settings))


def _judged_by(settings: Recipe) -> tuple[DiagnoseSection, int | None, float]:
    """What detectors know of a recipe."""
    return settings.diagnose, settings.total_steps(), settings.optim.loss_scale.floor
