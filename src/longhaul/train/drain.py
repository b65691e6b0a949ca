"""Figures on their way from the device to the host, without waiting for the device; and the records
of steps that are complete, with their share of the time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from longhaul.core.clocks import STEP_BUCKETS, TimeBuckets
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds
from longhaul.model.device import Mark, queues
from longhaul.train.step import TrainingStep

_MOST_UNDER_WAY = 16
"""Steps the host may run ahead. More would hide a fault for longer than it saves time."""
_MOST_AHEAD_S: Seconds = 10.0
"""Of long steps, and until one is measured, fewer: one more keeps the device busy. Faults would
stay hidden for minutes, and NCCL counts a collective's timeout from where the host queued it."""
_MILLISECOND = 1e-3


@dataclass(frozen=True, slots=True)
class Arrived:
    """A step that is complete."""

    tag: StepRecord
    figures: list[float]
    seconds: Mapping[str, Seconds]
    """By bucket, since the step before it; where several were seen complete together, its share, by
    the device's own time if known, else alike."""


@dataclass(frozen=True, slots=True)
class _UnderWay:
    tag: StepRecord
    figures: torch.Tensor
    began: Mark | None
    arrived: Mark | None

    def seconds(self) -> Seconds:
        """That the device worked on it, once it has arrived; 0 where that is not known."""
        if self.began is None or self.arrived is None:
            return 0.0
        return self.began.elapsed_time(self.arrived) * _MILLISECOND


class Pace:
    """Keeps the host within two pieces of work of its device, so that a sign of life before each of
    them tells of the device, which is kept busy all the same.
    """

    def __init__(self, device: torch.device, event: Callable[[], Mark] | None = None) -> None:
        self._event = event or _events_of(device)
        self._before: Mark | None = None

    def queued(self) -> None:
        """A piece is queued; wait for the one before it."""
        before, self._before = self._before, _mark(self._event)
        if before is not None:
            before.synchronize()


class Drain:
    """A queue of figures; one copy a step, none of them blocking on CUDA. `event` makes events of a
    device that the host runs ahead of; CUDA's own by default.
    """

    def __init__(
        self,
        device: torch.device,
        time_buckets: TimeBuckets,
        event: Callable[[], Mark] | None = None,
    ) -> None:
        self._time_buckets = time_buckets
        self._queues = queues(device)
        self._event = event or _events_of(device)
        self._queue: deque[_UnderWay] = deque()
        self._seen: deque[Arrived] = deque()
        """Complete, and not taken yet: whoever takes one may want to take all, to go back."""
        self._began: Mark | None = None
        self._took: Seconds = 0.0

    def __len__(self) -> int:
        """Steps whose figures nobody has taken yet."""
        return len(self._queue) + len(self._seen)

    def begin(self, compiles: bool = False) -> None:
        """What is queued from now on belongs to the next step. If the host `compiles` first, it
        waits for the device, whose work would pass for compiling; the step's own time is then
        unknown.
        """
        if compiles and self._queue and (last := self._queue[-1].arrived) is not None:
            last.synchronize()
        self._began = None if compiles else _mark(self._event)

    def push(self, tag: StepRecord, figures: torch.Tensor) -> None:
        """Send one step's figures (one dimension, float32) on their way."""
        if self._queues:
            host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
            host.copy_(figures, non_blocking=True)
            figures = host
        self._queue.append(_UnderWay(tag, figures, self._began, _mark(self._event)))

    def ready(self, wait: bool = False) -> Iterator[Arrived]:
        """What has arrived, oldest first; or all that is under way, such as before a save."""
        while self._seen or self._queue:
            if not self._seen:
                oldest = self._queue[0].arrived
                if oldest is not None and not oldest.query():
                    if not wait and len(self._queue) <= self._most_under_way:
                        return
                    oldest.synchronize()
                self._see()
            yield self._seen.popleft()

    def _see(self) -> None:
        """Let the oldest step be complete, and those after it that are."""
        complete = [self._queue.popleft()]
        while self._queue and (later := self._queue[0].arrived) is not None and later.query():
            complete.append(self._queue.popleft())
        seconds = [step.seconds() for step in complete]
        known = [s for s in seconds if s] or [1.0]
        self._took = max(seconds) or self._took
        usual = sum(known) / len(known)
        total = sum(s or usual for s in seconds)
        shares = [(s or usual) / total for s in seconds]
        dealt = dealt_out(self._time_buckets.drain(), shares)
        for step, own in zip(complete, dealt, strict=True):
            self._seen.append(Arrived(step.tag, step.figures.tolist(), own))

    @property
    def _most_under_way(self) -> int:
        if not self._took:
            return 1
        return max(1, min(_MOST_UNDER_WAY, int(_MOST_AHEAD_S / self._took)))


def _events_of(device: torch.device) -> Callable[[], Mark] | None:
    """None: the host does the work itself."""
    return partial(Mark, device, timing=True) if queues(device) else None


def _mark(event: Callable[[], Mark] | None) -> Mark | None:
    return None if event is None else event().record()


def complete(
    arrived: Arrived,
    step: TrainingStep,
    now: Seconds,
    reached: int,
) -> StepRecord:
    """A record with its step's figures, made at Unix time `now`; the host had queued `reached`."""
    record, figures = arrived.tag, arrived.figures
    loss, gradient_norm, masked, *scale = figures[: step.num_figures]
    readings = step.readings(figures)
    return replace(
        record,
        time=now,
        lag_steps=reached - record.step,
        loss=loss,
        gradient_norm=gradient_norm,
        masked=bool(masked),
        loss_scale=scale[0] if scale else None,
        loss_scale_at_floor=bool(scale and scale[1]),
        gauges=readings.gauges,
        totals=readings.totals,
        source_losses=readings.source_losses,
        seconds=arrived.seconds,
    )


def dealt_out(seconds: Mapping[str, Seconds], shares: Sequence[float]) -> list[dict[str, Seconds]]:
    """Seconds that were booked until several steps were seen complete, step by step. What steps
    take (`STEP_BUCKETS`) is shared by `shares`, which add up to 1; the rest came before the first.
    """
    dealt: list[dict[str, Seconds]] = [{} for _ in shares]
    for bucket, whole in seconds.items():
        own = shares if bucket in STEP_BUCKETS else (1.0,)
        left = whole
        for of_step, share in zip(dealt[: len(own) - 1], own[:-1], strict=True):
            of_step[bucket] = round(whole * share, 6)
            left -= of_step[bucket]
        dealt[len(own) - 1][bucket] = round(left, 6)
    return dealt
