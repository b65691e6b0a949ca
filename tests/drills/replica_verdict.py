"""What became of replicas that were killed one by one, and of the run that they made."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from longhaul.core.errors import ExitCode
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Seconds, short_seconds
from longhaul.supervise.ranks.progress import Progress

SOON_STEPS = 100
SOON = {"float32": 1e-5}
"""Largest relative difference of a loss in the first steps, by what is computed in: sums in another
order."""
SOON_ELSE = 1e-3
EVER = 1e-2
"""The same of the mean of so many losses, to the end: training makes rounding larger step by step,
until the losses of single batches say nothing any more."""
MEAN_STEPS = 100
WITHOUT_S: Seconds = 5.0
"""What the others may take to notice a death and go on without the replica (2.0 to 2.2 s here); one
that is back sooner still has kept nobody waiting."""
_LEADER = 0


@dataclass(frozen=True, slots=True)
class Kill:
    """A replica was killed."""

    replica: int
    monotonic: Seconds
    wall: Seconds
    """The same moment in Unix time."""
    step: int
    """Furthest step that had been made."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What followed a kill."""

    kill: Kill
    went_on_s: Seconds
    """Until the others had made the first step that they began without it."""
    longest_s: Seconds
    """Longest time without a step until it was back."""
    back_s: Seconds
    """Until it made a step itself."""
    healed_s: Seconds | None
    """Until it had a peer's state; None: nobody gave it one."""
    peer: int | None
    restarted: tuple[int, ...]
    """Others whose process was another one when it was back."""

    def __str__(self) -> str:
        kill = self.kill
        healed = (
            "never healed"
            if self.healed_s is None
            else f"healed by replica {self.peer} after {short_seconds(self.healed_s)}"
        )
        return (
            f"replica {kill.replica} at step {kill.step}: the others' next step after "
            f"{self.went_on_s:.2f} s, never more than {self.longest_s:.2f} s without one; {healed},"
            f" its own next step after {short_seconds(self.back_s)}"
        )


@dataclass(frozen=True, slots=True)
class Apart:
    """Relative differences between the losses of two runs; infinite where one is no number."""

    soon: float
    """The largest in the first `SOON_STEPS` steps."""
    ever: float
    """The largest of all."""
    means: float
    """The largest of the mean loss of `MEAN_STEPS` steps."""


class Course:
    """How far a run had come at every moment, by the replica that was furthest."""

    def __init__(self) -> None:
        self._points: list[tuple[Seconds, int]] = []

    @property
    def step(self) -> int:
        """The furthest so far."""
        return self._points[-1][1] if self._points else 0

    def see(self, said: Iterable[Progress]) -> None:
        """Take what replicas say now. Steps in between may be missed: times without one are never
        taken for shorter than they were.
        """
        furthest = max(said, key=lambda progress: progress.step, default=None)
        if furthest is not None and furthest.step > self.step:
            self._points.append((furthest.monotonic, furthest.step))

    def came_to(self, step: int) -> Seconds:
        """When that step was first seen to be made; infinite if it was not."""
        return next((at for at, made in self._points if made >= step), math.inf)

    def longest(self, begin: Seconds, end: Seconds) -> Seconds:
        """Longest time without a step that has a moment in common with this stretch."""
        there = (later - at for (at, _), (later, _) in pairwise(self._points)
                 if later > begin and at < end)  # fmt: skip
        return max(there, default=0.0)


def strokes(seed: int, every_s: Seconds, replicas: int) -> Iterator[tuple[Seconds, int]]:
    """Without end: how long after the last one was back, and which replica. Pauses are between half
    and one and a half of `every_s`; the same seed gives the same.
    """
    chance = random.Random(seed)
    while True:
        yield chance.uniform(0.5, 1.5) * every_s, chance.randrange(replicas)


def fate_of(
    kill: Kill, course: Course, back: Seconds, restarted: Sequence[int], records: Sequence[Record]
) -> Fate:
    """What followed a kill.

    Args:
        kill: it.
        course: of the run.
        back: when the replica had made a step again, on the monotonic clock.
        restarted: others whose process was another one by then.
        records: of the run's journal.
    """
    healed = [
        (event.time if event.kind == "healed" else float(event.data["healed"]), event.data["peer"])
        for event in records
        if isinstance(event, Event)
        and event.kind in ("healed", "replica-back")
        and (_LEADER if event.kind == "healed" else event.data["rank"]) == kill.replica
        and event.time >= kill.wall
    ]
    at, peer = healed[0] if healed else (None, None)
    return Fate(
        kill,
        # The step after the next: the next one may have been under way with it.
        went_on_s=course.came_to(kill.step + 2) - kill.monotonic,
        longest_s=course.longest(kill.monotonic, back),
        back_s=back - kill.monotonic,
        healed_s=None if at is None else at - kill.wall,
        peer=peer,
        restarted=tuple(restarted),
    )


def apart(made: Sequence[StepRecord], alone: Mapping[int, StepRecord]) -> Apart:
    """How far the losses of a run's steps are from those of the same run left alone."""
    pairs = [(r.loss, alone[r.step].loss) for r in made if r.step in alone]
    each = [_relative(*pair) for pair in pairs]
    groups = [pairs[at : at + MEAN_STEPS] for at in range(0, len(pairs), MEAN_STEPS)]
    sums = [[math.fsum(losses) for losses in zip(*group, strict=True)] for group in groups]
    return Apart(
        max(each[:SOON_STEPS], default=0.0),
        max(each, default=0.0),
        max((_relative(own, other) for own, other in sums), default=0.0),
    )


def complaints(
    code: int,
    fates: Sequence[Fate],
    records: Sequence[Record],
    alone: Mapping[int, StepRecord],
    computed_in: str,
) -> Iterator[str]:
    """What is not as it ought to be with a run whose replicas were killed.

    Args:
        code: its exit code, after it was told to stop.
        fates: of all kills.
        records: of its journal.
        alone: the steps of the same run left alone, by number.
        computed_in: number format.
    """
    if code != ExitCode.START_AGAIN:
        yield f"told to stop, it ended with exit code {code}, not {int(ExitCode.START_AGAIN)}"
    if not fates:
        yield "nothing was killed: there was no time for it"
    for fate in fates:
        name = f"replica {fate.kill.replica}, killed at step {fate.kill.step}"
        if fate.went_on_s >= fate.back_s > WITHOUT_S:
            yield f"{name}: the others waited until it was back"
        if fate.peer is None or fate.peer == fate.kill.replica:
            yield f"{name}: no peer healed it"
        yield from (f"{name}: replica {other} was started again too" for other in fate.restarted)
    deaths = _deaths(records)
    if deaths != Counter(fate.kill.replica for fate in fates):
        yield f"deaths in the journal, by replica: {dict(deaths)}"
    yield from _steps(records, alone, computed_in)


def _steps(
    records: Sequence[Record], alone: Mapping[int, StepRecord], computed_in: str
) -> Iterator[str]:
    made = [record for record in records if isinstance(record, StepRecord)]
    numbers, last = Counter(r.step for r in made), max((r.step for r in made), default=0)
    if wrong := [step for step in range(1, last + 1) if numbers[step] != 1]:
        yield f"{len(wrong)} steps are missing or were made twice, step {wrong[0]} the first"
    if wrong := sorted({r.step for r in made if _data(r) != _data(alone.get(r.step))}):
        yield f"{len(wrong)} steps read other data than in the run left alone: {wrong[0]} the first"
    found, soon = apart(made, alone), SOON.get(computed_in, SOON_ELSE)
    if not found.soon <= soon:
        yield f"a loss of the first {SOON_STEPS} steps is {found.soon:.1e} apart, not {soon:g}"
    if not found.means <= EVER:
        yield f"a mean of {MEAN_STEPS} losses is {found.means:.1e} apart, not {EVER:g}"


def _deaths(records: Sequence[Record]) -> Counter[int]:
    return Counter(
        int(event.data["rank"])
        for event in records
        if isinstance(event, Event)
        and event.kind in ("replica-lost", "attempt-ended")
        and "cause" in event.data
    )


def _data(record: StepRecord | None) -> tuple[int, int, int, int] | None:
    if record is None:
        return None
    return record.draw, record.next_draw, record.sequences, record.sequence_length


def _relative(one: float, other: float) -> float:
    difference = abs(one / other - 1) if other else abs(one)
    return difference if math.isfinite(difference) else math.inf
