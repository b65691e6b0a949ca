"""Building what a trainer works with on the device of one process, weights fresh."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from longhaul.checkpoint.host_buffers import SharedBuffers
from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.shared_memory import slots
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.size import model_size
from longhaul.core.clocks import Clock, TimeBuckets
from longhaul.core.machine import available_memory
from longhaul.core.output import View
from longhaul.core.units import Bytes, short_count
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.logbook.ledger import LedgerState
from longhaul.model.gpt import GPT
from longhaul.model.initialise import allocate, build, to_number_format
from longhaul.optim.gate import LossScale
from longhaul.optim.groups import describe
from longhaul.optim.update_rules import build_optimizer
from longhaul.parallel.world import Ranks, World
from longhaul.run.train.attempt import Attempt
from longhaul.train.parts import Parts
from longhaul.train.state import Progress
from longhaul.train.step import TrainingStep


def build_model(recipe: Recipe, dataset: Dataset, device: torch.device) -> GPT:
    """The recipe's model in its number format, filled, unless the device is `meta`."""
    end_of_text = dataset.tokenizer.end_of_text
    if device.type == "meta":
        model = allocate(recipe.model, dataset.vocab_size, device, end_of_text)
    else:
        model = build(recipe.model, dataset.vocab_size, recipe.seed, device, end_of_text)
    to_number_format(model, recipe.precision)
    return model


@dataclass(frozen=True)
class Site:
    """Where and under whom an attempt builds."""

    recipe: Recipe
    """As asked for."""
    ledger: LedgerState
    checkpoints: Path
    attempt: int
    still_owner: Callable[[], bool]
    """Asked before a checkpoint is committed."""
    time_buckets: TimeBuckets
    clock: Clock
    ranks: Ranks | None = None
    """All that build the same; None: one process."""
    make_room: Callable[[Bytes], bool] = lambda needed: False
    """On a full disk: whether older checkpoints have given way."""


def site_of(attempt: Attempt, ranks: Ranks | None = None) -> Site:
    """Where the holder of the lease builds."""
    run_log = attempt.run_log
    return Site(
        attempt.recipe,
        run_log.history.ledger,
        run_log.folder.checkpoints,
        run_log.lease.attempt,
        run_log.lease.is_ours,
        run_log.time,
        run_log.clock,
        ranks,
        attempt.tiers.make_room,
    )


def build_parts(site: Site, dataset: Dataset, device: torch.device) -> Parts:
    """Everything of a trainer but its position."""
    recipe, ranks = site.recipe, site.ranks
    settings = with_overrides(recipe, site.ledger.overrides_at(0))
    # Of many processes none has the whole model at any time.
    model = build_model(recipe, dataset, device if ranks is None else torch.device("meta"))
    recompute = recipe.machine.activation_checkpointing
    if recompute != "none":
        from longhaul.parallel.recompute import checkpoint_activations

        checkpoint_activations(model, recompute)
    parallel = None
    if ranks is not None:
        # It imports FSDP, which takes longer than everything else here.
        from longhaul.parallel.parallelize import parallelize

        parallel = parallelize(model, ranks.world, recipe.parallel, recipe.seed)
    optimizer = build_optimizer(model, settings.optim, parallel.sharding if parallel else None)
    world = None if ranks is None else ranks.world
    # Replicas deal every batch out themselves, among those that are there.
    readers = None if recipe.parallel.elastic else world
    is_fp16 = recipe.precision.half_weights == "fp16"
    parts = Parts(
        step=_kind_of_step(recipe)(
            model,
            optimizer,
            device,
            recipe.precision,
            recipe.seed,
            loss_scale=LossScale(settings.optim.loss_scale, device) if is_fp16 else None,
            compiled=recipe.machine.compile,
            sources=[source.name for source in dataset.sources],
            parallel=parallel,
        ),
        progress=Progress(settings, dataset.identity),
        batches=BatchReader(
            dataset,
            recipe.seed,
            recipe.block_length(),
            recipe.order.cycle,
            recipe.data.stages,
            rank=readers.data_rank if readers else 0,
            size=readers.data_size if readers else 1,
        ),
        dataset=dataset,
        saver=Saver(
            site.checkpoints,
            attempt=site.attempt,
            still_owner=site.still_owner,
            clock=site.clock,
            control=ranks.saving if ranks else None,
            make_room=site.make_room,
            settled=True,
        ),
        snapshots=_snapshots(site, world, device),
        time_buckets=site.time_buckets,
        clock=site.clock,
        ranks=ranks,
    )
    parts.step.before_change = partial(_settle, parts)
    return parts


def _kind_of_step(recipe: Recipe) -> type[TrainingStep]:
    if not recipe.parallel.elastic:
        return TrainingStep
    from longhaul.train.elastic import ElasticStep

    return ElasticStep


def _settle(parts: Parts) -> None:
    """Wait for a save that still reads the state which is about to change."""
    if parts.saver.copying:
        with parts.time_buckets.track("checkpoint_stall"):
            parts.saver.settle()


def say_what_was_built(parts: Parts, recipe: Recipe, view: View) -> None:
    """The model's size, and the groups of its optimizer, for a person."""
    step, size = parts.step, model_size(recipe.model, parts.dataset.vocab_size)
    many = f", {parts.ranks.world.layout}" if parts.ranks else ""
    view.say(
        f"model: {short_count(size.total)} parameters, {short_count(size.non_embedding)} outside "
        f"embeddings, on {step.device.type} in {recipe.precision.compute}{many}"
    )
    sharding = step.parallel.sharding if step.parallel else None
    columns = ("role", "tensors", "parameters", "lr", "decay")
    rows = [
        (row.role, str(row.tensors), f"{row.parameters:,}", f"{row.learning_rate:g}",
         f"{row.weight_decay:g}")
        for row in describe(step.optimizer.groups, parts.progress.settings.optim, sharding)
    ]  # fmt: skip
    view.table("optimizer groups", columns, rows)


def _snapshots(site: Site, world: World | None, device: torch.device) -> SnapshotRing:
    """Where the supervisor has memory for them, they outlive this process."""
    shared = None
    if own := slots(os.environ):
        # The same bytes are of use to the same rank of the same layout only.
        layout = "one process" if world is None else f"{world.rank} of {world.layout}"
        shared = SharedBuffers(own, site.attempt, layout, site.clock.wall, device)
    taken = shared.held_bytes if shared is not None else 0
    processes = world.local_size if world else 1
    asked = site.recipe.checkpoint.snapshot_mb
    of_host = (available_memory() + processes * taken) // 10 if asked is None else int(asked * 1e6)
    budget = of_host // processes
    return SnapshotRing(budget, control=site.ranks.control if site.ranks else None, shared=shared)
