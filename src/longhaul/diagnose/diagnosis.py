"""The judgement: records of a run in, findings out (DESIGN rule 2).

Enters: `StepRecord`s and `Event`s in the order of the journal, and limits. Leaves: `Finding`s,
the same ones for the same records and limits, live or replayed from an old journal.
Never knows: tensors, files, the clock, or what is done about a finding.

Memory: the last `memory_steps` records are kept. Whenever the line of training breaks, because an
attempt begins or a rollback goes back to an earlier step, the judgement is built anew from those
of them that still hold. That is the one way in which anything is forgotten, and why a judgement
that was rebuilt from a journal goes on exactly like one that was there all the time.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from longhaul.config.diagnose import DiagnoseSection
from longhaul.core.records import Event, Finding, Record, StepRecord
from longhaul.diagnose.detectors import detectors
from longhaul.diagnose.incidents import Incidents
from longhaul.diagnose.scheduled import Schedule
from longhaul.diagnose.sign import Sign


class Diagnosis:
    """Judges one run.

    A new one that has observed at least the last `memory_steps` steps and evaluations of a journal
    goes on like the one before it.

    Args:
        limits: from where on a signal is worth a finding.
        total_steps: steps the run is to make, where that is known: a plateau at its end, or a
            forecast beyond it, is no trouble.
        least_scale: `optim.loss_scale.floor`, below which fp16's loss scale is not lowered.
    """

    def __init__(
        self, limits: DiagnoseSection, total_steps: int | None = None, least_scale: float = 1.0
    ) -> None:
        self._limits = limits
        self._total_steps = total_steps
        self._least_scale = least_scale
        self._memory: deque[StepRecord | Event] = deque(maxlen=limits.memory_steps)
        self._last: StepRecord | None = None
        self._begin_anew()

    def observe(self, record: Record) -> tuple[Finding, ...]:
        """What the record brings to light; records of other kinds say nothing."""
        if isinstance(record, Event):
            if record.kind != "evaluation":
                return ()
            self._memory.append(record)
            return tuple(self._evaluated(record))
        if not isinstance(record, StepRecord):
            return ()
        last, self._last = self._last, record
        if last is not None and (record.attempt != last.attempt or record.step <= last.step):
            self._rebuild(record.step)
        self._memory.append(record)
        return tuple(self._stepped(record))

    def change(
        self, limits: DiagnoseSection, total_steps: int | None, least_scale: float = 1.0
    ) -> None:
        """Judge by other limits from now on, and what is remembered by them too."""
        self._limits, self._total_steps, self._least_scale = limits, total_steps, least_scale
        self._memory = deque(self._memory, limits.memory_steps)
        if self._last is not None:
            self._rebuild(self._last.step + 1)

    def _begin_anew(self) -> None:
        self._schedule = Schedule()
        self._judges = tuple(
            (detector, Incidents(self._limits.quiet, detector.again))
            for detector in detectors(self._limits, self._total_steps, self._least_scale)
        )

    def _rebuild(self, before_step: int) -> None:
        """Forget everything but the line of records that leads to `before_step`."""
        self._begin_anew()
        for record in _line(self._memory, before_step):
            findings = (
                self._stepped(record) if isinstance(record, StepRecord) else self._evaluated(record)
            )
            deque(findings, 0)

    def _stepped(self, record: StepRecord) -> Iterator[Finding]:
        changed = self._schedule.changed(record)
        for detector, incidents in self._judges:
            signs = detector.step(record, changed)
            for sign in incidents.news(signs):
                yield _finding(sign, record)

    def _evaluated(self, event: Event) -> Iterator[Finding]:
        for detector, incidents in self._judges:
            for sign in incidents.news(detector.evaluated(event)):
                yield _finding(sign, event)


def replay(
    records: Iterable[Record],
    limits: DiagnoseSection,
    total_steps: int | None = None,
    least_scale: float = 1.0,
) -> Iterator[Finding]:
    """Findings of a whole journal, as they were or would have been told live."""
    diagnosis = Diagnosis(limits, total_steps, least_scale)
    for record in records:
        yield from diagnosis.observe(record)


def _line(memory: Iterable[StepRecord | Event], before_step: int) -> Iterator[StepRecord | Event]:
    """Those records whose steps the training state at `before_step` has in it, in order."""
    line = []
    for record in reversed(list(memory)):
        if record.step >= before_step:
            continue  # rolled back since
        if isinstance(record, StepRecord):
            before_step = record.step
        line.append(record)
    return reversed(line)


def _finding(sign: Sign, record: StepRecord | Event) -> Finding:
    return Finding(
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
