"""The tap: how statistics leave the model.

Hooks break compilation, so the model writes its declared gauges itself, into buffers on the device.
A closed tap takes nothing: evaluation, and recomputation in the backward pass, count nothing twice.

Shape suffixes: B sequences, T tokens.
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
    meaning: str = ""
    per: Literal["layer", "model", "role", "source"] = "layer"
    """What has a reading of its own."""


Combine = Callable[[Tensor, int], tuple[Tensor, Tensor]]


class Tap:
    """Readings of the model's gauges (`GPT.gauges`), by layer, and whether they are taken."""

    def __init__(
        self, gauges: Sequence[Gauge], layers: int, device: torch.device | str = "cpu"
    ) -> None:
        self._gauges = {gauge.name: gauge for gauge in gauges}
        of_layer = [gauge for gauge in gauges if gauge.per == "layer"]
        of_model = [gauge for gauge in gauges if gauge.per == "model"]
        self.of_reading = (*of_layer * layers, *of_model)
        """The gauge of each reading in a drained tensor."""
        columns, end = len(of_layer), len(of_layer) * layers
        self._layers = {g.name: slice(place, end, columns) for place, g in enumerate(of_layer)}
        self._totals = {g.name: slice(place, place + 1) for place, g in enumerate(of_model, end)}
        self._places = self._layers | self._totals
        self.size = len(self.of_reading)
        """Readings in a drained tensor."""
        self._folded = torch.empty(self.size, device=device)
        self._losses: list[Tensor] = []
        # Apart from those of earlier passes: by their number a pass would be compiled anew.
        self._losses_of_pass: Tensor | None = None
        self.is_open = False
        self._start_afresh()

    @contextmanager
    def open_for_forward(self) -> Iterator["Tap"]:
        """Take readings of one micro-batch's forward pass, and of nothing after it."""
        self.is_open = True
        self._openings += 1
        try:
            yield self
        finally:
            self.is_open = False
            if self._losses_of_pass is not None:
                self._losses.append(self._losses_of_pass)
            self._losses_of_pass = None

    def write(self, name: str, value: Tensor, layer: int = 0) -> None:
        """Fold a scalar tensor into a reading, of the model or a layer; nothing if closed."""
        if not self.is_open:
            return
        place = self._places[name]
        slot = self._folded[place.start + layer * (place.step or 1)]
        match self._gauges[name].reduction:
            case "max":
                torch.maximum(slot, value.to(slot.dtype), out=slot)
            case "min":
                torch.minimum(slot, value.to(slot.dtype), out=slot)
            case "mean":
                slot.add_(value)
            case "rms":
                slot.addcmul_(value, value)
            case other:
                raise ValueError(f"{name} is {other}, which no forward pass reads")

    def keep_losses(self, losses_BT: Tensor, counted_BT: Tensor) -> None:
        """Keep each sequence's loss if open; without a target it is 0, `counted_BT` false."""
        if self.is_open:
            sums_2B = torch.stack((losses_BT.sum(dim=1), counted_BT.sum(dim=1)))
            self._losses_of_pass = sums_2B

    def drain(self, combine: Combine | None = None) -> Tensor:
        """The readings since the last call, on the device, layer by layer, then those of the model;
        the tap starts afresh. `combine` takes what was folded of each reading, and how often the
        tap was opened, and gives them for several taps together.
        """
        readings = self._folded.clone()
        openings: float | Tensor = max(self._openings, 1)
        if combine is not None:
            readings, openings = combine(readings, self._openings)
        for name, places in self._places.items():
            reduction = self._gauges[name].reduction
            if reduction in ("mean", "rms"):
                readings[places] /= openings
            if reduction == "rms":
                readings[places].sqrt_()
        self._start_afresh()
        return readings

    def drain_losses(self) -> Tensor:
        """[2, B]: summed losses in nats, and targets, of every sequence since the last call."""
        if not self._losses:
            return torch.zeros(2, 0, device=self._folded.device)
        losses_2B = torch.cat(self._losses, dim=1)
        self._losses.clear()
        return losses_2B

    def by_name(
        self, readings: Sequence[float]
    ) -> tuple[dict[str, tuple[float, ...]], dict[str, float]]:
        """Drained readings on the host, by gauge: a value per layer, and the model's value."""
        layers = {name: tuple(readings[places]) for name, places in self._layers.items()}
        return layers, {name: readings[place.start] for name, place in self._totals.items()}

    def _start_afresh(self) -> None:
        self._openings = 0
        for name, places in self._places.items():
            self._folded[places] = _START.get(self._gauges[name].reduction, 0.0)
