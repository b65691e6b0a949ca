"""Which states can be trusted: those after which training stayed healthy for a while; and whether
the loss bears out a warning that came ahead of it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import median, quantiles

from longhaul.config.recover import SOUND_KINDS
from longhaul.core.events import EventKind
from longhaul.core.records import Event, Finding, Record, Safe, StepRecord
from longhaul.recover.plan import Situation, Trouble


@dataclass(frozen=True, slots=True)
class Course:
    """The course of training that the newest step stands on, without what was rolled back.

    A state after s updates is **good** once s + N steps were made after it, N being the probation,
    and no trouble reaches into that stretch. A trouble is a warning or an alarm about the weights'
    health; it lasts from its first sign f to the step t that brought it to light, and denies every
    state with f − N ≤ s ≤ t. The state before the first step is always good: it has learned nothing
    that could be wrong. What a rollback undoes is forgotten, except a trouble whose first sign lies
    before the state gone back to.
    """

    step: int = 0
    """Updates made."""
    troubles: tuple[Trouble, ...] = ()

    def after(self, record: Record) -> "Course":
        """The course with one more record."""
        if isinstance(record, StepRecord):
            back = self if record.step > self.step else self.back_to(record.step - 1)
            return Course(record.step, back.troubles)
        if isinstance(record, Finding):
            if record.severity == "notice" or record.kind in SOUND_KINDS:
                return self
            trouble = Trouble(record.first_step, record.step)
            # Events alone tell of no steps, but they do tell how far a trouble was seen.
            return Course(max(self.step, record.step), (*self.troubles, trouble))
        if isinstance(record, Event) and record.kind == EventKind.SEGMENT_OPENED:
            return self if record.step >= self.step else self.back_to(record.step)
        return self

    def back_to(self, step: int) -> "Course":
        """The course after going back to the state after `step` updates."""
        kept = tuple(
            Trouble(trouble.first_step, min(trouble.step, step))
            for trouble in self.troubles
            if trouble.first_step <= step
        )
        return Course(step, kept)

    @property
    def quiet_since(self) -> int:
        """Step that brought the last trouble to light; 0 without any."""
        return max((trouble.step for trouble in self.troubles), default=0)

    def is_good(self, step: int, probation_steps: int) -> bool:
        """Whether the state after `step` updates is good, as defined above."""
        long_ago = self.step >= step + probation_steps
        return step == 0 or (long_ago and not _denied(step, self.troubles, probation_steps))


def _denied(step: int, troubles: Iterable[Trouble], probation_steps: int) -> bool:
    return any(t.first_step - probation_steps <= step <= t.step for t in troubles)


def by_step(states: Iterable[Safe]) -> list[Safe]:
    """In their order; of several after a step memory, the faster, last."""
    return sorted(states, key=lambda state: (state.step, state.where == "memory"))


def course_of(records: Iterable[Record]) -> Course:
    """The course after all records, in the order written; findings and events are enough."""
    return reduce(Course.after, records, Course())


def good_states(states: Iterable[Safe], course: Course, probation_steps: int) -> tuple[Safe, ...]:
    """Those that are good, `by_step`."""
    return tuple(by_step(s for s in states if course.is_good(s.step, probation_steps)))


def innocent_states(situation: Situation, change_step: int) -> list[Safe]:
    """States from before a change, `by_step`, that nothing but what came of the change speaks
    against: one whose probation it cut short is as good as any. First signs may be estimated too
    early by a margin.
    """
    late, probation_steps = change_step - situation.sizes.margin, situation.sizes.probation
    older = [t for t in situation.troubles if t.step <= change_step or t.first_step <= late]
    states = by_step(situation.states or situation.good)
    before = [state for state in states if state.step <= change_step]
    return [state for state in before if not _denied(state.step, older, probation_steps)]


_FEWEST = 8
"""Losses on either side, below which their noise tells more than their level."""
_MOST = 64
"""Losses on either side: harm that began late must not drown in what went well before it."""


def is_worse(losses: Sequence[tuple[int, float]], since: int, begin: int = 0) -> bool | None:
    """Whether half of the last losses lie above three quarters of those before a step; None if too
    few are known. Those are the later half of the losses since, and as many before it. A margin of
    two thirds of a standard deviation of single losses, so that noise is not taken for harm.

    `losses` are (step, nats) by rising step; those up to `begin`, as in the warm-up, say nothing.
    """
    values = {step: loss if math.isfinite(loss) else math.inf for step, loss in losses}
    last = max(values, default=0)
    count = min(max((last - since) // 2, _FEWEST), _MOST)
    stretches = (max(since - count, begin), since), (max(last - count, since), last)
    before, after = (
        [values[step] for step in range(first + 1, end + 1) if step in values]
        for first, end in stretches
    )
    if len(before) < _FEWEST or not after:
        return None
    return median(after) > quantiles(before, n=4, method="inclusive")[2]
