"""What a trainer works with, and under which name it writes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock, TimeBuckets
from longhaul.core.errors import RecipeError
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.model.initialise import allocate, build, to_number_format
from longhaul.optim.gate import LossScale
from longhaul.optim.update_rules import build_optimizer
from longhaul.parallel.world import World
from longhaul.train.state import Progress
from longhaul.train.step import TrainingStep


@dataclass(frozen=True)
class Parts:
    """What a trainer works with; made by `run/`, owned by it."""

    step: TrainingStep
    progress: Progress
    batches: BatchReader
    dataset: Dataset
    saver: Saver
    snapshots: SnapshotRing
    time_buckets: TimeBuckets
    clock: Clock
    ranks: World | None = None
    """All that train together; None: one process."""


@dataclass(frozen=True)
class Identity:
    """Under which name records are written."""

    attempt: int
    segment: str
    done_before: int
    """Steps that were made before and lost; making them again is booked as redone."""


def build_step(
    recipe: Recipe,
    vocab_size: int,
    end_of_text: int | None,
    device: torch.device,
    world: World | None = None,
    *,
    sources: Sequence[str] = (),
    kind: type[TrainingStep] = TrainingStep,
) -> TrainingStep:
    """The recipe's step with fresh weights: on one device, or this rank's part of it."""
    if world is None:
        model = build(recipe.model, vocab_size, recipe.seed, device, end_of_text)
    else:  # of many processes none has the whole model at any time
        model = allocate(recipe.model, vocab_size, "meta", end_of_text)
    to_number_format(model, recipe.precision)
    if recipe.precision.float8:
        from longhaul.model.float8 import to_float8

        to_float8(model, device)
    recompute = recipe.machine.activation_checkpointing
    if recompute != "none":
        from longhaul.parallel.recompute import checkpoint_activations

        checkpoint_activations(model, recompute)
    parallel = None
    if world is not None:
        if recipe.machine.records_graphs:
            raise RecipeError(
                "machine.compile: CUDA graphs are of a model that one process has whole, and this "
                f"one is shared by {world.size}",
                "set machine.compile=true",
            )
        # It imports FSDP, which takes longer than everything else here.
        from longhaul.parallel.parallelize import parallelize

        parallel = parallelize(model, world, recipe.parallel, recipe.seed)
    is_fp16 = recipe.precision.half_weights == "fp16"
    return kind(
        model,
        build_optimizer(model, recipe.optim, parallel.sharding if parallel else None),
        device,
        recipe.precision,
        recipe.seed,
        loss_scale=LossScale(recipe.optim.loss_scale, device) if is_fp16 else None,
        compiled=recipe.machine.compiles,
        records_graphs=recipe.machine.records_graphs,
        sources=sources,
        parallel=parallel,
    )
