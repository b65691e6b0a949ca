"""One small model: trained in this process by longhaul's own trainer, and evaluated on the whole
recipe's held-out sets, whatever text it was trained on.
"""

import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import RealClock, TimeBuckets
from longhaul.core.files import write_json
from longhaul.core.records import StepRecord, finite_or_word
from longhaul.core.units import Nats, Seconds
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset, open_dataset
from longhaul.logbook.ledger import LedgerState
from longhaul.parallel.device import own_device, settle_torch
from longhaul.train.evaluation import evaluate
from longhaul.train.parts import Identity, Parts, build_step
from longhaul.train.state import Progress
from longhaul.train.trainer import Trainer

RESULT = "cell.json"
"""In a cell's folder once it is done."""
_LOOK_EVERY_S: Seconds = 1.0


@dataclass(frozen=True, slots=True)
class CellJob:
    """All that a worker needs."""

    folder: Path
    """Gets the result."""
    values: Mapping[str, Any]
    """The recipe's tables."""
    text: Path
    """Prepared folder that is trained on."""
    held_out: Path
    """Prepared folder whose held-out sets judge; of the same tokenizer."""
    most_evaluated: int
    """Tokens of each set."""


def begin_worker() -> None:
    """End this process when the one that started it dies, however that comes about."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_EVERY_S)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def train_cell(job: CellJob) -> dict[str, Nats]:
    """Train a cell, and write its losses by held-out set down, last of all; NaN where it failed."""
    began = time.monotonic()
    recipe = recipe_from_values(job.values)
    settle_torch(recipe)
    device = own_device(recipe.machine.device)
    dataset, judging = open_dataset(job.text), open_dataset(job.held_out)
    trainer, reader = _trainer(recipe, dataset, device, job.folder)
    with closing(reader):
        losses = [r.loss for r in trainer.steps() if isinstance(r, StepRecord)]
    found = evaluate(
        trainer.training_step.model, judging, device, recipe.precision, recipe.model.context,
        recipe.evaluated_at_once(0), job.most_evaluated, loss_from=recipe.data.loss_from,
    )  # fmt: skip
    result = {name: split.loss for name, split in found.sources.items() if split.tokens}
    job.folder.mkdir(parents=True, exist_ok=True)
    took = time.monotonic() - began
    body = {"losses": result, "training_losses": losses[:: max(1, len(losses) // 100)],
            "text": dataset.identity, "seconds": took}  # fmt: skip
    write_json(job.folder / RESULT, finite_or_word(body))
    return result


def _trainer(
    recipe: Recipe, dataset: Dataset, device: torch.device, folder: Path
) -> tuple[Trainer, BatchReader]:
    clock, reader = RealClock(), BatchReader(dataset, recipe)
    parts = Parts(
        step=build_step(
            recipe, dataset.vocab_size, dataset.tokenizer.end_of_text, device,
            sources=[source.name for source in dataset.sources],
        ),
        progress=Progress(recipe, dataset.identity),
        batches=reader,
        dataset=dataset,
        # Nothing is saved: a cell takes a minute, and is the least that is made again.
        saver=Saver(folder, attempt=1, still_owner=lambda: False, clock=clock),
        snapshots=SnapshotRing(0),
        time_buckets=TimeBuckets(clock),
        clock=clock,
    )  # fmt: skip
    return Trainer(recipe, LedgerState(), parts, Identity(1, "1.00", 0)), reader
