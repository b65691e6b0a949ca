"""Building what a trainer works with on the device of one process, weights fresh."""

import os
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from longhaul.checkpoint.host_buffers import SharedBuffers
from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.shared_memory import slots
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.size import model_size
from longhaul.core.clocks import TimeBuckets
from longhaul.core.machine import available_memory
from longhaul.core.output import View, print_error
from longhaul.core.units import short_count
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import LedgerState
from longhaul.model.code_cache import keep_code
from longhaul.model.device import page_locked
from longhaul.model.masks import flex_attends
from longhaul.monitor.throughput import peak_flops
from longhaul.optim.groups import describe
from longhaul.parallel.device import compiler_facts
from longhaul.parallel.world import World
from longhaul.run.train.attempt import Attempt
from longhaul.train.parts import Parts, build_step
from longhaul.train.state import ModelState, Progress
from longhaul.train.step import TrainingStep


def saver_of(attempt: Attempt, ranks: World | None = None) -> Saver:
    """Saves under the lease."""
    run_log = attempt.run_log
    return Saver(
        run_log.folder.checkpoints,
        attempt=run_log.lease.attempt,
        still_owner=run_log.lease.is_ours,
        clock=run_log.clock,
        control=ranks.saving if ranks else None,
        make_room=attempt.tiers.make_room,
        settled=True,
    )


def build_parts(
    recipe: Recipe,
    ledger: LedgerState,
    dataset: Dataset,
    device: torch.device,
    saver: Saver,
    time_buckets: TimeBuckets,
    ranks: World | None = None,
) -> Parts:
    """Everything of a trainer but its position, for the `recipe` as asked for; `ranks` are all that
    build the same, None one process. `saver` must be one that is told to settle.
    """
    settings = with_overrides(recipe, ledger.overrides_at(0))
    kind = TrainingStep
    if recipe.parallel.elastic:
        from longhaul.train.elastic import ElasticStep

        kind = ElasticStep
    # Replicas deal every batch out themselves, among those that are there.
    readers = None if recipe.parallel.elastic else ranks
    rank, size = (readers.data_rank, readers.data_size) if readers else (0, 1)
    parts = Parts(
        step=build_step(
            recipe.model_copy(update={"optim": settings.optim}),
            dataset.vocab_size,
            dataset.tokenizer.end_of_text,
            device,
            ranks,
            sources=[source.name for source in dataset.sources],
            kind=kind,
        ),
        progress=Progress(settings, dataset.identity, dataset.continues),
        batches=BatchReader(
            dataset,
            recipe,
            ledger.mixture_before,
            rank,
            size,
            placed=partial(page_locked, device=device),
        ),
        dataset=dataset,
        saver=saver,
        snapshots=_snapshots(recipe, saver, ranks, device),
        time_buckets=time_buckets,
        clock=saver.clock,
        ranks=ranks,
    )
    parts.step.before_change = partial(_settle, parts)
    if dataset.streaming is not None:
        dataset.streaming.tell(print_error)  # of each rank, in its log
        dataset.streaming.on_wait(time_buckets.alive)
        dataset.streaming.processes = ranks.size if ranks is not None else 1
    return parts


def keep_generated_code(folder: RunFolder, recipe: Recipe, device: torch.device) -> str:
    """Before anything is compiled; a sentence for people, empty where nothing will be."""
    attends = flex_attends(recipe.model, recipe.model.context, device)
    if not (recipe.machine.compiles or attends):
        return ""
    return keep_code(folder.compiled, folder.identity, compiler_facts(device))


def begin_with_given(parts: Parts, recipe: Recipe) -> None:
    """Fill the model of a run that is at its beginning with the weights that the recipe names, if
    any; of several ranks each fills its own parts. DataError if they do not fit.
    """
    if recipe.init.from_ is not None:
        from longhaul.interop.hf.given import fill

        fill(ModelState(parts.step.model, parts.step.parallel), recipe)


def _settle(parts: Parts) -> None:
    """Wait for a snapshot or a save that still reads the state which is about to change."""
    parts.snapshots.settle()
    with parts.time_buckets.track("checkpoint_stall") if parts.saver.copying else nullcontext():
        parts.saver.settle()


def hardware(parts: Parts, recipe: Recipe) -> dict[str, Any]:
    """The devices that train, and what a token costs them: who reads the journal tells the MFU."""
    device, precision = parts.step.device, recipe.precision
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    ranks = parts.ranks.size if parts.ranks else 1
    peak = peak_flops(name, precision.compute, precision.tf32, precision.float8)
    if recipe.parallel.elastic:
        peak = None  # replicas come and go
    size = model_size(recipe.model, parts.dataset.vocab_size)
    return {
        "name": name, "count": ranks, "peak": None if peak is None else ranks * peak,
        "flops_per_token": size.flops_per_token(recipe.model.context),
    }  # fmt: skip


def say_what_was_built(parts: Parts, recipe: Recipe, view: View) -> None:
    """The model's size, and the groups of its optimizer, for a person."""
    step, size = parts.step, model_size(recipe.model, parts.dataset.vocab_size)
    many = f", {parts.ranks.layout}" if parts.ranks else ""
    view.say(
        f"model: {short_count(size.total)} parameters, {short_count(size.non_embedding)} outside "
        f"embeddings, on {step.device.type} in {recipe.precision.compute}{many}"
    )
    sharding = step.parallel.sharding if step.parallel else None
    columns = ("role", "tensors", "parameters", "lr", "decay")
    rows = [
        (role, str(tensors), f"{parameters:,}", f"{lr:g}", f"{decay:g}")
        for role, tensors, parameters, lr, decay in describe(
            step.optimizer.groups, parts.progress.settings.optim, sharding
        )
    ]
    view.table("optimizer groups", columns, rows)


def _snapshots(
    recipe: Recipe, saver: Saver, ranks: World | None, device: torch.device
) -> SnapshotRing:
    """Where the supervisor has memory for them, they outlive this process."""
    shared = None
    if own := slots(os.environ):
        # The same bytes are of use to the same rank of the same layout only.
        layout = f"{ranks.rank} of {ranks.layout}" if ranks else "one process"
        shared = SharedBuffers(own, saver.attempt, layout, saver.clock.wall, device)
    taken = shared.held_bytes if shared is not None else 0
    processes = ranks.local_size if ranks else 1
    asked = recipe.checkpoint.snapshot_mb
    of_host = (available_memory() + processes * taken) // 10 if asked is None else int(asked * 1e6)
    control = ranks.control if ranks else None
    return SnapshotRing(of_host // processes, control=control, shared=shared, settled=True)
