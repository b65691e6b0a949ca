"""All gauges of a step, in one tensor that is copied to the host with its other figures. Each is
declared where it is read (`model/block.py`, `attention.py`, `head.py`, `monitor/weights.py`), which
changes no bit and draws from no generator.

Shapes: B sequences of the global batch, N sources.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from longhaul.model.device import to_device
from longhaul.model.gpt import GPT
from longhaul.model.tap import Gauge, Tap
from longhaul.monitor.weights import ABSENT, ROLE_GAUGES, WeightGauges, present
from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group
from longhaul.optim.optimizer import Optimizer
from longhaul.optim.sharding import Sharding

NOISE_SCALE = Gauge(
    "noise_scale",
    "token",
    "mean",
    "gradient noise scale (arXiv 1812.06162, appendix A.1), from the first micro-batch and the "
    "whole batch: a batch far below it gains from growing, one far above it does not; present "
    "when gradients are accumulated and the estimate is positive. One reading may be wrong by a "
    "factor of several: take the median of many",
    "model",
)


def noise_scale(
    small_norm: Tensor, small_tokens: int, large_norm: Tensor, large_tokens: int
) -> Tensor:
    """tr(Σ) / |G|² from the norms of two mean gradients, over `small_tokens` among `large_tokens`
    targets; `ABSENT` if the noise hides the one or the other.

    Both are estimated without bias (arXiv 1812.06162, appendix A.1): |G|² comes out negative about
    as often as not when the batch is far below the noise scale.
    """
    small, large = small_norm.square(), large_norm.square()
    signal = (large_tokens * large - small_tokens * small) / (large_tokens - small_tokens)
    noise = (small - large) / (1 / small_tokens - 1 / large_tokens)
    return torch.where((signal > 0) & (noise > 0), noise / signal, ABSENT)


SOURCE_LOSS = Gauge(
    "source_losses",
    "nat",
    "mean",
    "mean loss of each source's target tokens in the batch, without z-loss",
    "source",
)


def declared() -> tuple[Gauge, ...]:
    """Every gauge that there is."""
    return (*GPT.gauges, *ROLE_GAUGES, NOISE_SCALE, SOURCE_LOSS)


@dataclass(frozen=True, slots=True)
class Readings:
    """The gauges of one step, as its record carries them."""

    gauges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By gauge a value per layer."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """By gauge of the model, or `gauge.role`."""
    source_losses: Mapping[str, float] = field(default_factory=dict)
    """By source, of those that are in the batch."""


class ModelGauges:
    """Reads every gauge of a step, reduced over all processes of `sharding`. `sources` are named by
    number. In order: `tap.open_for_forward()` around each micro-batch, `see_first` if there are
    several, `watch` around the update, `drain`.
    """

    def __init__(
        self,
        model: GPT,
        groups: Sequence[Group],
        device: torch.device,
        sources: Sequence[str] = (),
        sharding: Sharding | None = None,
    ) -> None:
        self._sharding = sharding
        self.tap = Tap(model.gauges, len(model.blocks), device)
        reductions = [gauge.reduction for gauge in self.tap.of_reading]
        self._is_largest, self._is_smallest = (
            to_device(torch.tensor([reduction == end for reduction in reductions]), device)
            for end in ("max", "min")
        )
        self._weights = WeightGauges(groups, sharding)
        self._sources = tuple(sources)
        self._absent = torch.full((), ABSENT, device=device)
        self._first: tuple[Tensor, int] | None = None
        self._noise_scale = self._absent

    def see_first(self, norm: Tensor, tokens: int) -> None:
        """Take the norm of the scaled gradient of the first of several micro-batches."""
        self._first = norm, tokens

    @contextmanager
    def watch(
        self, optimizer: Optimizer, gate: Gate, scale: Tensor | None, tokens: int
    ) -> Iterator[None]:
        """Read judged gradients of a batch of so many targets, and the update made in the body."""
        with self._weights.watch(optimizer, gate, scale):
            yield
        self._noise_scale = self._absent
        if self._first is not None:
            norm, first_tokens = self._first
            # Its losses were divided by the targets of the whole batch.
            norm = norm * (tokens / first_tokens)
            norm = norm if scale is None else norm / scale
            self._noise_scale = noise_scale(norm, first_tokens, gate.gradient_norm, tokens)

    def drain(self, source_B: Tensor | None) -> Tensor:
        """All readings of the step, float32 on the device."""
        readings = torch.cat(
            (
                self.tap.drain(None if self._sharding is None else self._combined),
                self._noise_scale.view(1),
                self._weights.drain(),
                self._losses_by_source(self.tap.drain_losses(), source_B),
            )
        )
        self._first = None
        return readings

    def discard(self) -> None:
        """Forget what was read since the last `drain`."""
        self.tap.drain()
        self.tap.drain_losses()
        self._first = None

    def by_name(self, readings: Sequence[float]) -> Readings:
        """Drained readings, on the host."""
        gauges, totals = self.tap.by_name(readings[: self.tap.size])
        names = (NOISE_SCALE.name, *self._weights.names)
        end = self.tap.size + len(names)
        totals |= present(names, readings[self.tap.size : end])
        return Readings(gauges, totals, present(self._sources, readings[end:]))

    def _combined(self, folded: Tensor, openings: int) -> tuple[Tensor, Tensor]:
        """What the taps of all ranks have folded, and how often they were opened."""
        assert self._sharding is not None
        ends = self._sharding.largest(torch.where(self._is_smallest, -folded, folded))
        sums = self._sharding.sum(torch.cat((folded, folded.new_full((1,), openings))))
        # Each stage of a pipeline writes gauges of its own, and opens the tap as often.
        folded, total = sums[:-1], sums[-1] / self._sharding.stages
        folded = torch.where(self._is_largest, ends, folded)
        return torch.where(self._is_smallest, -ends, folded), total

    def _losses_by_source(self, losses_2B: Tensor, source_B: Tensor | None) -> Tensor:
        """Mean loss [N], `ABSENT` for sources that are not in the batch."""
        if source_B is None:
            return self._absent.expand(len(self._sources))
        sums_2N = losses_2B.new_zeros(2, len(self._sources))
        # Sequences that are only padding, at the end of a share, were not seen.
        sums_2N.index_add_(1, source_B[: losses_2B.size(1)], losses_2B)
        if self._sharding is not None:
            self._sharding.sum(sums_2N)
        return torch.where(sums_2N[1] > 0, sums_2N[0] / sums_2N[1], ABSENT)
