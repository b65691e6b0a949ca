"""The tap: how statistics leave the model (DESIGN rule 13).

Hooks break compilation, so blocks write their declared gauges themselves, into a buffer on
the device that is allocated once. A closed tap takes nothing: evaluation, and recomputation
of a checkpointed block in the backward pass, find it closed and count nothing twice.

Enters: scalars on the device, by layer and gauge. Leaves: one float32 tensor [layer, gauge],
reduced over the micro-batches for which the tap was opened, without waiting for the device.
Never knows: what a figure means for the run's health.

Shape suffixes: L layers, G gauges.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gauge:
    """One declared statistic, read once per layer."""

    name: str
    unit: str
    reduction: Literal["max", "mean", "rms"]
    """How readings of several micro-batches, and of several ranks, become one: the largest,
    the mean, or the root of the mean square. A NaN reading survives each of them."""


class Tap:
    """A buffer of readings, and whether it is being filled.

    Args:
        gauges: what the blocks declare (`GPT.gauges`).
        layers: number of blocks that write.
        device: where the model computes.
    """

    def __init__(
        self, gauges: Sequence[Gauge], layers: int, device: torch.device | str = "cpu"
    ) -> None:
        self.gauges = tuple(gauges)
        self._column = {gauge.name: column for column, gauge in enumerate(self.gauges)}
        self._buffer_LG = torch.zeros(layers, len(self.gauges), device=device)
        self._openings = 0
        self.is_open = False

    @contextmanager
    def open_for_forward(self) -> Iterator[None]:
        """Take readings of one micro-batch's forward pass, and of nothing after it."""
        self.is_open = True
        self._openings += 1
        try:
            yield
        finally:
            self.is_open = False

    def write(self, layer: int, name: str, value: Tensor) -> None:
        """Fold a scalar tensor into the reading of one layer; nothing if the tap is closed."""
        if not self.is_open:
            return
        column = self._column[name]
        slot = self._buffer_LG[layer, column]
        match self.gauges[column].reduction:
            case "max":
                torch.maximum(slot, value.to(slot.dtype), out=slot)
            case "mean":
                slot.add_(value)
            case "rms":
                slot.addcmul_(value, value)

    def drain(self) -> Tensor:
        """The readings [layer, gauge] since the last call, on the device; the tap starts afresh.

        Zeros if it was never opened.
        """
        readings_LG = self._buffer_LG.clone()
        self._buffer_LG.zero_()
        openings, self._openings = max(self._openings, 1), 0
        for column, gauge in enumerate(self.gauges):
            if gauge.reduction != "max":
                readings_LG[:, column] /= openings
            if gauge.reduction == "rms":
                readings_LG[:, column].sqrt_()
        return readings_LG

    def by_name(self, readings_LG: Tensor) -> dict[str, tuple[float, ...]]:
        """Drained readings, moved to the host, as a record carries them: a value per layer."""
        rows = readings_LG.T.tolist()
        return {gauge.name: tuple(row) for gauge, row in zip(self.gauges, rows, strict=True)}
