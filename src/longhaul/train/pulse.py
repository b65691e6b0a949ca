"""How long a rank computes by itself, however long it waits for the others: the wall time of a pass
says nothing of a rank, as all wait for each other within it.

On the CPU a rank that waits sleeps, in every collective of every layout: its own time is the
processor time of the thread that makes the step. A slower or throttled chip takes more of it; a
stranger that keeps the rank from its core does not, or a shared machine would accuse all the time.

On CUDA the forward passes of layers are timed, between events behind the gathering of a layer's
weights and before anything that follows it; they are read when they have long passed.
Tensor-parallel layers wait for each other inside, so the ranks of one layer look alike.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longhaul.core.units import Seconds
from longhaul.model.device import Mark, queues

_MILLISECOND = 1e-3
EVERY_STEPS = 8
"""The figures of so many steps are sent at once: eight numbers."""
_LATE_STEPS = 24
"""On a device they are sent so much later: the host runs 17 steps ahead of it at most."""


class Pulse:
    """The clock of one rank; layers of its part of the model are looked at on CUDA alone."""

    def __init__(self, device: torch.device, layers: Sequence[nn.Module]) -> None:
        self._device, self._queues = device, queues(device)
        self.clock: Callable[[], Seconds] = time.thread_time
        """Of the host."""
        self._late = _LATE_STEPS if self._queues else 0
        self._times: dict[int, Seconds | list[Mark]] = {}
        self._took: Seconds = math.nan
        self._events: list[Mark] | None = None
        if self._queues:
            # Here, as it imports the compiler, and that FSDP.
            mark = torch.compiler.disable(self._mark)
            for layer in layers:
                layer.register_forward_pre_hook(mark)
                # Before FSDP's own, which may let weights go and wait.
                layer.register_forward_hook(mark, prepend=True)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The body makes the passes of a step."""
        self._events = [] if self._queues else None
        before = self.clock()
        try:
            yield
        finally:
            self._took = self.clock() - before

    def reach(self, step: int) -> Tensor | None:
        """Keep what the step took that has just been made; at every eighth step float64 [8]:
        seconds of the steps `sent_at(step)`, NaN where they are not known.
        """
        self._times[step] = self._took if self._events is None else self._events
        self._events = None
        if step % EVERY_STEPS:
            return None
        sent = self.sent_at(step)
        seconds = [_seconds(self._times.get(earlier, math.nan)) for earlier in sent]
        # Steps that a rollback has left behind are made again, and must not be kept for ever.
        self._times = {n: kept for n, kept in self._times.items() if sent[-1] < n <= step}
        return torch.tensor(seconds, dtype=torch.float64)

    def sent_at(self, step: int) -> range:
        """The steps whose seconds are sent at `step`."""
        last = step - self._late
        return range(last - EVERY_STEPS + 1, last + 1)

    def _mark(self, layer: nn.Module, *given: Any) -> None:
        if self._events is not None:
            self._events.append(Mark(self._device, timing=True).record())


def _seconds(kept: Seconds | list[Mark]) -> Seconds:
    """Seconds between pairs of events; NaN where the device is not so far yet."""
    if not isinstance(kept, list):
        return kept
    if not kept or not kept[-1].query():
        return math.nan
    pairs = zip(kept[::2], kept[1::2], strict=True)
    return sum(begin.elapsed_time(end) for begin, end in pairs) * _MILLISECOND
