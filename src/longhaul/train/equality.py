"""Whether a layout trains as one process does: the same few steps, compared."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from longhaul.config.recipe import Recipe
from longhaul.core.schedules import derive_key
from longhaul.data.batches import Batch, own_share
from longhaul.monitor.gauges import NOISE_SCALE, Readings
from longhaul.optim.optimizer import Optimizer
from longhaul.optim.sharding import Sharding, own_part
from longhaul.parallel.world import World
from longhaul.train.parts import build_step
from longhaul.train.step import TrainingStep

# A weight whose gradient is below this share of the whole one is compared with that share: a
# scalar's is the sum of as many terms as there are activations, and most of it cancels out.
_SMALLEST_SHARE = 1e-2
# Which sums come out as exactly zero is a matter of rounding.
_NOT_COMPARED = ("gradient_zero_share",)
_SMALLEST_READING = 1e-6  # of a gauge; nearer to zero nothing is compared


@dataclass(frozen=True)
class Trace:
    """A few steps."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    gradients: Mapping[str, Tensor]
    """Of the first step, whole, by name of the weight; empty on ranks other than 0."""
    gauges: Mapping[str, float]
    """Of the last step."""
    data_size: int = 1
    """Ranks that read different sequences."""


@dataclass(frozen=True)
class Distance:
    """Between two traces, relative."""

    loss: float
    """Of the step whose losses are furthest apart."""
    norm: float
    gradient: float
    """Norm of the difference over the norm, of the weight where that is largest."""
    weight: str
    """That weight."""
    gauge: float
    """Of the gauge that is furthest apart."""
    gauge_name: str


def trace(
    recipe: Recipe,
    vocab_size: int,
    steps: int,
    world: World | None = None,
    spoil: Callable[[TrainingStep], None] | None = None,
) -> Trace:
    """Train a few steps on random tokens; all ranks of `world` call it together.

    With dropout in the recipe traces differ. `spoil` does something wrong to the step before it is
    used, to see that it shows.
    """
    device = world.device if world is not None else torch.device("cpu")
    step = make_step(recipe, vocab_size, device, world)
    if spoil is not None:
        spoil(step)
    first: dict[str, Tensor] = {}
    figures: list[list[float]] = []
    micro_sequences = recipe.batch.micro_sequences
    assert micro_sequences is None or isinstance(micro_sequences, int)
    for batch in random_batches(recipe, vocab_size, steps, world):
        if not figures:
            step.before_change = partial(_keep_gradients, step.optimizer, first)
        sequences = micro_sequences or len(batch.tokens_BT)
        read_gauges = batch.draw == steps - 1
        figures.append(step(batch, sequences, recipe.optim.lr, read_gauges).tolist())
        step.before_change = lambda: None
    sharding = step.optimizer.sharding
    return Trace(
        losses=tuple(loss for loss, *_ in figures),
        norms=tuple(norm for _, norm, *_ in figures),
        gradients=first if sharding is None else _joined(first, sharding),
        gauges=_named(step.readings(figures[-1])),
        data_size=1 if world is None else world.data_size,
    )


def make_step(
    recipe: Recipe, vocab_size: int, device: torch.device, world: World | None
) -> TrainingStep:
    """The recipe's step on one device, plainly computed, or this rank's part of it."""
    if world is None:
        plainly = {"compile": False, "activation_checkpointing": "none"}
        recipe = recipe.model_copy(update={"machine": recipe.machine.model_copy(update=plainly)})
    return build_step(recipe, vocab_size, 0, device, world, sources=("even", "odd"))


def random_batches(
    recipe: Recipe, vocab_size: int, steps: int, world: World | None
) -> Iterator[Batch]:
    """The same global batches for every world; each rank is given its share."""
    stage = recipe.batch_at(0)
    rank, size = (0, 1) if world is None else (world.data_rank, world.data_size)
    for draw in range(steps):
        generator = torch.Generator().manual_seed(derive_key(recipe.seed, "equality", draw))
        shape = (stage.sequences, stage.sequence_length + 1)
        window_BT = torch.randint(vocab_size, shape, generator=generator)
        batch = Batch(
            tokens_BT=window_BT[:, :-1],
            targets_BT=window_BT[:, 1:],
            num_targets=stage.sequences * stage.sequence_length,
            draw=draw,
            next_draw=draw + 1,
            source_B=torch.arange(stage.sequences) % 2,
        )
        yield own_share(batch, rank, size, even=True)


def distance(one: Trace, other: Trace) -> Distance:
    """How far `other` is from `one`; NaN anywhere is infinitely far."""
    whole = math.sqrt(sum(float(g.square().sum()) for g in one.gradients.values()))
    apart = {
        name: float((other.gradients[name].float() - gradient).norm())
        / max(float(gradient.norm()), _SMALLEST_SHARE * whole)
        for name, gradient in one.gradients.items()
    }
    weight = max(apart, key=lambda name: _far(apart[name]))
    # A reading that only one of them has is infinitely far; so is none at all of any kind.
    names = one.gauges.keys() | other.gauges.keys()
    if one.data_size != other.data_size:
        # The first micro-batches of more ranks are another sample of the noise.
        names -= {NOISE_SCALE.name}
    read = {
        name: _relative(one.gauges.get(name, math.nan), other.gauges.get(name, math.nan))
        for name in sorted(names)
    }
    gauge = max(read, key=lambda name: read[name])
    return Distance(
        _furthest(one.losses, other.losses),
        _furthest(one.norms, other.norms),
        _far(apart[weight]),
        weight,
        read[gauge],
        gauge,
    )


def _furthest(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    pairs = zip(one, other, strict=True)
    return max(_relative(a, b) for a, b in pairs)


def _relative(a: float, b: float) -> float:
    return 0.0 if a == b else _far(abs(b - a) / max(abs(a), _SMALLEST_READING))


def _named(readings: Readings) -> dict[str, float]:
    layers = {
        f"{name}.{layer}": value
        for name, values in readings.gauges.items()
        for layer, value in enumerate(values)
    }
    losses = {f"source_losses.{name}": loss for name, loss in readings.source_losses.items()}
    named = layers | dict(readings.totals) | losses
    return {name: v for name, v in named.items() if not name.startswith(_NOT_COMPARED)}


def _far(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _keep_gradients(optimizer: Optimizer, kept: dict[str, Tensor]) -> None:
    for group in optimizer.groups:
        for name, weight in zip(group.names, group.parameters, strict=True):
            assert weight.grad is not None
            kept[name] = own_part(weight.grad).detach().float().clone()


def _joined(parts: Mapping[str, Tensor], sharding: Sharding) -> dict[str, Tensor]:
    own = [
        (name, pieces.shape, piece.there, part[piece.here])
        for name, part in parts.items()
        if (pieces := sharding.pieces[name]).is_first_copy
        for piece in pieces.mine
    ]
    of_ranks: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, of_ranks)
    whole: dict[str, Tensor] = {}
    for name, shape, there, part in chain.from_iterable(of_ranks or ()):
        whole.setdefault(name, torch.full(shape, torch.nan))[there] = part
    return whole
