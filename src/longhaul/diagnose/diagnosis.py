"""Records of a run in, findings out.

What is the same trouble going on is found once (`Incidents`). Where the schedule changed something,
levels may change from there on (`what_changed`).

Memory: the last `memory_steps` records are kept. Whenever the line of training breaks, because an
attempt begins or a rollback goes back to an earlier step, the judgement is built anew from those
of them that still hold: so one rebuilt from a journal goes on exactly like one that never ended.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from longhaul.config.diagnose import DiagnoseSection
from longhaul.core.events import EventKind
from longhaul.core.faults import Point, point
from longhaul.core.records import Event, Finding, Record, StepRecord
from longhaul.diagnose.divergence import Divergence
from longhaul.diagnose.growth import Growth
from longhaul.diagnose.non_finite import LossScaleCollapse, NonFinite
from longhaul.diagnose.overfitting import Overfitting, TooGood
from longhaul.diagnose.progress import FrozenGroup, Plateau, SlowProgress
from longhaul.diagnose.signs import Change, Detector, Sign, Signs
from longhaul.diagnose.spikes import GradientSpike, LossSpike
from longhaul.diagnose.throughput import ThroughputDrop


def detectors(
    limits: DiagnoseSection, total_steps: int | None, least_scale: float, clips: bool
) -> tuple[Detector, ...]:
    """New ones, in the order in which they are asked."""
    return (
        NonFinite(limits.non_finite),
        LossSpike(limits.loss_spike),
        GradientSpike(limits.gradient_spike, clips),
        Divergence(limits.divergence),
        LossScaleCollapse(limits.loss_scale, least_scale),
        Growth(limits.growth, total_steps),
        Plateau(limits.plateau, total_steps),
        SlowProgress(limits.slow_progress),
        FrozenGroup(limits.frozen_group),
        TooGood(limits.too_good),
        Overfitting(limits.overfitting),
        ThroughputDrop(limits.throughput),
    )


_JUDGED_EVENTS = (EventKind.EVALUATION, EventKind.DATA_CHANGED)
_RANK = {"notice": 0, "warning": 1, "alarm": 2}


@dataclass(slots=True)
class _Incident:
    rank: int
    judgements: int = 0  # without a sign of it
    repeats: int = 0  # judgements with a sign of it since it was news


class Incidents:
    """The open incidents of one detector; `quiet` judgements without a sign close one.

    After `again` signs an alarm that goes on is news again, as what was done did not help.
    """

    def __init__(self, quiet: int, again: int | None = None) -> None:
        self._quiet = quiet
        self._again = again
        self._open: dict[tuple[str, str], _Incident] = {}

    def news(self, signs: Signs) -> tuple[Sign, ...]:
        """Signs that are news."""
        if signs is None or not (signs or self._open):
            return ()
        seen, news = {(sign.kind, sign.subject) for sign in signs}, []
        for key, incident in list(self._open.items()):
            incident.judgements = 0 if key in seen else incident.judgements + 1
            if incident.judgements >= self._quiet:
                del self._open[key]
        for sign in signs:
            key, rank = (sign.kind, sign.subject), _RANK[sign.severity]
            known = self._open.get(key)
            if known is None:
                self._open[key] = _Incident(rank)
                news.append(sign)
                continue
            known.repeats += 1
            due = self._again is not None and known.repeats >= self._again
            if rank > known.rank or (due and rank == _RANK["alarm"]):
                known.rank, known.repeats = max(rank, known.rank), 0
                news.append(sign)
        return tuple(news)


_JUMP = 1.25
"""Schedules move the learning rate by a few per cent a step at most, once it is warm; a larger
step is a decision, after which other levels are due."""


_of_data = attrgetter("sequences", "sequence_length", "mixture_stage", "attention_window")


def what_changed(before: StepRecord | None, record: StepRecord) -> Change:
    """What this step brought; nothing at the first."""
    if before is None:
        return ""
    if _of_data(record) != _of_data(before):
        return "data"
    if before.learning_rate <= 0:
        return ""
    ratio = record.learning_rate / before.learning_rate
    # A warm-up only ever raises it.
    highest = math.inf if before.warmup or record.warmup else _JUMP
    return "" if 1 / _JUMP <= ratio <= highest else "rate"


class Diagnosis:
    """Judges one run by `limits`, from which on a signal is worth a finding.

    A plateau at the end of `total_steps`, or a forecast beyond it, is no trouble. `least_scale`:
    `optim.loss_scale.floor`, below which fp16's loss scale is not lowered. `clips`: gradient norms
    are clipped.
    """

    def __init__(
        self,
        limits: DiagnoseSection,
        total_steps: int | None = None,
        least_scale: float = 1.0,
        clips: bool = True,
    ) -> None:
        self._memory: deque[StepRecord | Event] = deque()
        self._last: StepRecord | None = None
        self.change(limits, total_steps, least_scale, clips)

    def observe(self, record: Record) -> tuple[Finding, ...]:
        """What the record brings to light; records of other kinds say nothing."""
        if isinstance(record, StepRecord):
            last, self._last = self._last, record
            if last is not None and (record.attempt != last.attempt or record.step <= last.step):
                self._rebuild(record.step)
        elif not isinstance(record, Event) or record.kind not in _JUDGED_EVENTS:
            return ()
        self._memory.append(record)
        return point(Point.FINDINGS, tuple(self._judged(record)))

    def change(
        self,
        limits: DiagnoseSection,
        total_steps: int | None = None,
        least_scale: float = 1.0,
        clips: bool = True,
    ) -> None:
        """Judge by other limits from now on, and what is remembered by them too."""
        self._limits = limits
        self._detectors = partial(detectors, limits, total_steps, least_scale, clips)
        self._memory = deque(self._memory, limits.memory_steps)
        self._rebuild(math.inf if self._last is None else self._last.step + 1)

    def _rebuild(self, before_step: float) -> None:
        """Forget everything but the line of records that leads to `before_step`."""
        self._before: StepRecord | None = None
        self._other_data = False  # the next step brings some, whatever its record has
        self._judges = tuple(
            (detector, Incidents(self._limits.quiet, detector.again))
            for detector in self._detectors()
        )
        for record in _line(self._memory, before_step):
            deque(self._judged(record), 0)

    def _judged(self, record: StepRecord | Event) -> Iterator[Finding]:
        changed: Change = ""
        if isinstance(record, StepRecord):
            changed = "data" if self._other_data else what_changed(self._before, record)
            self._before, self._other_data = record, False
        elif record.kind == EventKind.DATA_CHANGED:
            self._other_data = True
            return
        for detector, incidents in self._judges:
            if isinstance(record, StepRecord):
                signs = detector.step(record, changed)
            else:
                signs = detector.evaluated(record)
            for sign in incidents.news(signs):
                yield Finding(
                    kind=sign.kind,
                    severity=sign.severity,
                    attempt=record.attempt,
                    segment=record.segment,
                    step=record.step,
                    first_step=sign.first.step,
                    first_draw=sign.first.draw,
                    time=record.time,
                    subject=sign.subject,
                    evidence=sign.evidence,
                    sentence=sign.sentence,
                )


def _line(memory: Iterable[StepRecord | Event], before_step: float) -> Iterator[StepRecord | Event]:
    """Those records whose steps the training state at `before_step` has in it, in order."""
    line = []
    for record in reversed(list(memory)):
        if record.step >= before_step:
            continue  # rolled back since
        if isinstance(record, StepRecord):
            before_step = record.step
        line.append(record)
    return reversed(line)
