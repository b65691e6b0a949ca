"""The tap: how statistics leave the model.

Hooks break compilation, so the model writes its declared gauges itself, into buffers on the device.
A closed tap takes nothing: evaluation, and recomputation in the backward pass, count nothing twice.

Shape suffixes: L layers, G gauges of a layer, M gauges of the model, B sequences, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

# What a buffer begins with: changed by the first reading, whatever that is.
_START = {"max": -torch.inf, "min": torch.inf}


@dataclass(frozen=True, slots=True)
class Gauge:
    """One declared statistic."""

    name: str
    unit: str
    reduction: Literal["max", "min", "mean", "rms", "norm"]
    """How readings of several micro-batches, and of several ranks, become one: the largest, the
    smallest, the mean, the root of the mean square, or of the sum of squares (of shards of a
    tensor). A NaN reading survives each of them."""
    per: Literal["layer", "model", "role", "source"] = "layer"
    """What has a reading of its own."""
    meaning: str = ""


Combine = Callable[[Tensor, Sequence[Gauge], int], tuple[Tensor, Tensor]]


class Tap:
    """Buffers of readings of gauges that the model declares (`GPT.gauges`), for so many layers; and
    whether they are being filled.
    """

    def __init__(
        self, gauges: Sequence[Gauge], layers: int, device: torch.device | str = "cpu"
    ) -> None:
        self.gauges = tuple(gauge for gauge in gauges if gauge.per == "layer")
        self.totals = tuple(gauge for gauge in gauges if gauge.per == "model")
        self._layers = layers
        self._column = {gauge.name: column for column, gauge in enumerate(self.gauges)}
        self._place = {gauge.name: place for place, gauge in enumerate(self.totals)}
        self._buffer_LG = torch.empty(layers, len(self.gauges), device=device)
        self._buffer_M = torch.empty(len(self.totals), device=device)
        self._losses: list[Tensor] = []
        self._openings = 0
        self.is_open = False
        self._start_afresh()

    @property
    def size(self) -> int:
        """Readings in a drained tensor."""
        return self._buffer_LG.numel() + self._buffer_M.numel()

    @contextmanager
    def open_for_forward(self) -> Iterator["Tap"]:
        """Take readings of one micro-batch's forward pass, and of nothing after it."""
        self.is_open = True
        self._openings += 1
        try:
            yield self
        finally:
            self.is_open = False

    def write(self, layer: int, name: str, value: Tensor) -> None:
        """Fold a scalar tensor into the reading of one layer; nothing if the tap is closed."""
        if self.is_open:
            column = self._column[name]
            _fold(self._buffer_LG[layer, column], self.gauges[column], value)

    def write_total(self, name: str, value: Tensor) -> None:
        """Fold a scalar tensor into a reading of the model; nothing if the tap is closed."""
        if self.is_open:
            place = self._place[name]
            _fold(self._buffer_M[place], self.totals[place], value)

    def keep_losses(self, losses_BT: Tensor, counted_BT: Tensor) -> None:
        """Keep each sequence's loss if open; without a target it is 0, `counted_BT` false."""
        if self.is_open:
            self._losses.append(torch.stack((losses_BT.sum(dim=1), counted_BT.sum(dim=1))))

    def drain(self, combine: Combine | None = None) -> Tensor:
        """The readings since the last call, on the device, layer by layer, then those of the model;
        the tap starts afresh. `combine` takes what was folded of each reading, its gauge, and how
        often the tap was opened, and gives them for several taps together.
        """
        folded_LG, folded_M = self._buffer_LG.clone(), self._buffer_M.clone()
        openings: float | Tensor = max(self._openings, 1)
        if combine is not None:
            gauges = (*self.gauges * self._layers, *self.totals)
            folded = torch.cat((folded_LG.flatten(), folded_M))
            folded, openings = combine(folded, gauges, self._openings)
            of_layers, folded_M = folded.split((folded_LG.numel(), folded_M.numel()))
            folded_LG = of_layers.view_as(folded_LG)
        readings_LG = _reduced(folded_LG, self.gauges, openings)
        readings_M = _reduced(folded_M, self.totals, openings)
        self._start_afresh()
        return torch.cat((readings_LG.flatten(), readings_M))

    def drain_losses(self) -> Tensor:
        """[2, B]: summed losses in nats, and targets, of every sequence since the last call."""
        if not self._losses:
            return torch.zeros(2, 0, device=self._buffer_M.device)
        losses_2B = torch.cat(self._losses, dim=1)
        self._losses.clear()
        return losses_2B

    def by_name(
        self, readings: Sequence[float]
    ) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
        """Drained readings on the host, by gauge: a value per layer, and the model's value."""
        columns, end = len(self.gauges), self._buffer_LG.numel()
        layers = {
            gauge.name: tuple(readings[column:end:columns])
            for column, gauge in enumerate(self.gauges)
        }
        names = (gauge.name for gauge in self.totals)
        return layers, dict(zip(names, readings[end:], strict=True))

    def _start_afresh(self) -> None:
        self._openings = 0
        for buffer, gauges in ((self._buffer_LG, self.gauges), (self._buffer_M, self.totals)):
            for place, gauge in enumerate(gauges):
                buffer[..., place] = _START.get(gauge.reduction, 0.0)


def _fold(slot: Tensor, gauge: Gauge, value: Tensor) -> None:
    match gauge.reduction:
        case "max":
            torch.maximum(slot, value.to(slot.dtype), out=slot)
        case "min":
            torch.minimum(slot, value.to(slot.dtype), out=slot)
        case "mean":
            slot.add_(value)
        case "rms":
            slot.addcmul_(value, value)
        case _:
            raise ValueError(f"{gauge.name} is {gauge.reduction}, which no forward pass reads")


def _reduced(sums: Tensor, gauges: Sequence[Gauge], openings: float | Tensor) -> Tensor:
    for place, gauge in enumerate(gauges):
        if gauge.reduction in ("mean", "rms"):
            sums[..., place] /= openings
        if gauge.reduction == "rms":
            sums[..., place].sqrt_()
    return sums
