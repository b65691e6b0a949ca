"""Detectors, the course of training, and the policy, fed together.

Live the loop feeds them, afterwards the journal (`backtest.py`), with the same records in the same
order; all that they go by is in these and in the ledger. So both come to the same plans.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from longhaul.config.diagnose import DiagnoseSection
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import STEP_BUCKETS
from longhaul.core.records import Event, Finding, Record, Safe, StepRecord, Where
from longhaul.core.units import Seconds
from longhaul.diagnose.diagnosis import Diagnosis
from longhaul.logbook.ledger import LedgerState
from longhaul.recover.plan import Plan, Situation, sizes_of
from longhaul.recover.policy import LOOK_EVERY_STEPS, decide
from longhaul.recover.probation import Course, good_states

_RECENT_STEPS = 64
"""Steps that typical figures are taken from."""
_LINE_STEPS = 512
"""Records kept for who looks for a cause."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan before its cause was looked for."""

    plan: Plan
    situation: Situation
    record: StepRecord
    """Of the step that it was drafted after."""
    findings: tuple[Finding, ...]
    """All that came to light since the last boundary."""


class HealthMonitor:
    """Judges one run, or one attempt of it, by the `settings` in force at its start.

    `history`: the run's last records, in order, from which its state is rebuilt; what they show
    was reported when it happened. `course`: of training up to there; None for that of `history`.
    """

    def __init__(
        self, settings: Recipe, history: Iterable[Record] = (), course: Course | None = None
    ) -> None:
        self._settings = settings
        self._diagnosis = Diagnosis(*_judged_by(settings))
        self._course = Course()
        self._states: tuple[Safe, ...] = ()
        self._seconds: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._norms: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._residuals: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._pending: tuple[Finding, ...] = ()
        self._line: deque[StepRecord] = deque(maxlen=_LINE_STEPS)
        self._losses: deque[tuple[int, float]] = deque(maxlen=settings.diagnose.memory_steps)
        self._looked = 0
        for record in history:
            self._observe(record)
        if course is not None:
            self._course = course
        self._states = ()  # what an attempt can go back to, its own first record tells

    @staticmethod
    def records_needed(settings: Recipe) -> int:
        """How many of the run's last records rebuild its state; about half of them are steps."""
        return 2 * settings.diagnose.memory_steps

    @property
    def line(self) -> tuple[StepRecord, ...]:
        """Records of the last steps that the run stands on, in order, without a gap."""
        return tuple(self._line)

    def seconds_per_step(self) -> Seconds:
        """Of a typical step; 0 before the first."""
        return fmean(self._seconds) if self._seconds else 0.0

    def enter(self, settings: Recipe) -> None:
        """Judge by these settings from the next record on."""
        if settings is not self._settings:
            before, self._settings = self._settings, settings
            if _judged_by(settings) != _judged_by(before):
                self._diagnosis.change(*_judged_by(settings))
            # As many as the last records of a journal give back.
            self._losses = deque(self._losses, settings.diagnose.memory_steps)

    def observe(self, record: StepRecord | Event) -> tuple[Finding, ...]:
        """What a record brings to light; the next draft takes it up."""
        findings = self._observe(record)
        for finding in findings:
            self._course = self._course.after(finding)
        self._pending += findings
        return findings

    def draft(self, ledger: LedgerState) -> Draft | None:
        """What is to be done at the boundary of the last step's record, if anything."""
        findings, self._pending = self._pending, ()
        record, settings = self._line[-1], self._settings
        step_boundary = record.step + record.lag_steps
        rested = bool(ledger.recoveries) and step_boundary % LOOK_EVERY_STEPS == 0
        if not findings and not rested:
            return None
        batch = settings.batch_at(step_boundary)
        probation = sizes_of(settings.recover, settings.total_steps()).probation
        situation = Situation(
            step=step_boundary,
            draw=record.next_draw,
            blocks_per_step=batch.sequences * batch.sequence_length // settings.block_length(),
            seconds_per_step=self.seconds_per_step(),
            settings=settings,
            ledger=ledger,
            good=good_states(self._states, self._course, probation),
            states=self._states,
            troubles=self._course.troubles,
            quiet_since=self._course.quiet_since,
            losses=tuple(self._losses),
            gradient_norm=median(self._norms) if self._norms else None,
            residual_max=median(self._residuals) if self._residuals else None,
        )
        plan = decide(situation, findings)
        return None if plan is None else Draft(plan, situation, record, findings)

    def defer(self, findings: Sequence[Finding]) -> None:
        """Nothing could be done about these now: the next draft takes them up."""
        self._pending = (*findings, *self._pending)

    def forget_pending(self) -> None:
        """Nobody is left to do anything about what came to light last."""
        self._pending = ()

    def passed_probation(self, ledger: LedgerState) -> Iterator[tuple[int, str]]:
        """(step, manifest) of checkpoints that have become good; looked for now and then."""
        if self._course.step // LOOK_EVERY_STEPS == self._looked:
            return
        self._looked = self._course.step // LOOK_EVERY_STEPS
        probation = sizes_of(self._settings.recover, self._settings.total_steps()).probation
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
            while self._losses and self._losses[-1][0] >= record.step:
                self._losses.pop()
            self._losses.append((record.step, record.loss))
            if record.states is not None:
                self._states = tuple(
                    Safe(step, draw, _WHERE.get(word, "disk")) for step, draw, word in record.states
                )
            if not record.masked:
                self._norms.append(record.gradient_norm)
                names = ("residual_max", "residual_min")
                read = [abs(value) for name in names for value in record.gauges.get(name, ())]
                if read and all(map(math.isfinite, read)):
                    self._residuals.append(max(read))
            if "compile" not in record.seconds:
                self._seconds.append(sum(record.seconds.get(b, 0.0) for b in STEP_BUCKETS))
        return self._diagnosis.observe(record)


_WHERE: Mapping[str, Where] = {"memory": "memory", "remote": "remote"}
"""On disk under any other word."""


def _judged_by(settings: Recipe) -> tuple[DiagnoseSection, int | None, float, bool]:
    """What detectors know of a recipe."""
    optim = settings.optim
    return settings.diagnose, settings.total_steps(), optim.loss_scale.floor, optim.clip > 0
