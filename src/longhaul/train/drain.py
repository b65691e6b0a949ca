"""Figures on their way from the device to the host, without waiting for the device.

Enters: a tensor of figures per step, and a tag. Leaves: (tag, floats), in order, once they
have arrived. Never knows: what the figures mean.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

Tag = TypeVar("Tag")

_MOST_UNDER_WAY = 16
"""Steps the host may run ahead. More would hide a fault for longer than it saves time."""


@dataclass(frozen=True, slots=True)
class _UnderWay(Generic[Tag]):
    tag: Tag
    figures: torch.Tensor
    arrived: torch.cuda.Event | None


class Drain(Generic[Tag]):
    """A queue of figures; one copy a step, none of them blocking on CUDA."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._queue: deque[_UnderWay[Tag]] = deque()

    def __len__(self) -> int:
        """Steps whose figures nobody has taken yet."""
        return len(self._queue)

    def push(self, tag: Tag, figures: torch.Tensor) -> None:
        """Send one step's figures (one dimension, float32) on their way."""
        arrived = None
        if self._on_cuda:
            host = torch.empty(figures.shape, dtype=figures.dtype, pin_memory=True)
            host.copy_(figures, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
            figures = host
        self._queue.append(_UnderWay(tag, figures, arrived))

    def ready(self, wait: bool = False) -> Iterator[tuple[Tag, list[float]]]:
        """What has arrived, oldest first.

        Args:
            wait: for everything that is under way, such as before a save or at the end.
        """
        while self._queue:
            oldest = self._queue[0]
            if oldest.arrived is not None and not oldest.arrived.query():
                if not wait and len(self._queue) <= _MOST_UNDER_WAY:
                    return
                oldest.arrived.synchronize()
            self._queue.popleft()
            yield oldest.tag, oldest.figures.tolist()
