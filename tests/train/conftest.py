"""A tiny trainer made by hand, without a run's folder."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fakes import FakeClock
from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import TimeBuckets
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.data.prepare import prepare
from longhaul.logbook.ledger import LedgerState
from longhaul.model.initialise import build
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.state import Progress
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Identity, Parts, Trainer
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "train.steps=12", "model.width=16", "model.layers=1", "model.context=32",
    "batch.stages=[{from_step=6, sequences=8, sequence_length=32}]",
    "batch.sequence_length=16", "evaluation.interval_steps=5", "evaluation.tokens=256",
    "checkpoint.interval_steps=4", "monitor.gauge_interval_steps=3",
    "optim.schedule.warmup_steps=3",
)  # fmt: skip


@pytest.fixture(scope="session")
def dataset(prepared: Path) -> Dataset:
    return prepare(load_recipe("drill", TINY).recipe, prepared, lambda _: None)


MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make_trainer(tmp_path: Path, dataset: Dataset) -> Iterator[MakeTrainer]:
    torch.set_num_threads(1)
    made: list[BatchReader] = []

    def make(
        *overrides: str, ledger: LedgerState | None = None, folder: str = "checkpoints"
    ) -> Trainer:
        recipe: Recipe = load_recipe("drill", [*TINY, *overrides]).recipe
        model = build(recipe.model, dataset.vocab_size, recipe.seed)
        optimizer = build_optimizer(model, recipe.optim)
        clock, device = FakeClock(), torch.device("cpu")
        batches = BatchReader(dataset, recipe)
        made.append(batches)
        parts = Parts(
            step=TrainingStep(
                model,
                optimizer,
                device,
                recipe.precision,
                recipe.seed,
                compiled=recipe.machine.compile,
                sources=[source.name for source in dataset.sources],
            ),
            progress=Progress(recipe, dataset.identity),
            batches=batches,
            dataset=dataset,
            saver=Saver(tmp_path / folder, attempt=1, still_owner=lambda: True, clock=clock),
            snapshots=SnapshotRing(64 << 20),
            time_buckets=TimeBuckets(clock),
            clock=clock,
        )
        return Trainer(recipe, ledger or LedgerState(), parts, Identity(1, "1.00", 0))

    yield make
    for batches in made:
        batches.close()
