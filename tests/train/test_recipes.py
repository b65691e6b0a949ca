"""Every shipped recipe's small twin: it learns, and goes on exactly where it stopped."""

from pathlib import Path

import pytest
import torch

from fakes import FakeClock
from longhaul.checkpoint.capture import capture
from longhaul.checkpoint.loader import restore
from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.recipe import Recipe
from longhaul.config.size import shrunken
from longhaul.core.clocks import TimeBuckets
from longhaul.core.records import StepRecord
from longhaul.data.batches import BatchReader
from longhaul.data.prepare import prepare
from longhaul.logbook.ledger import LedgerState
from longhaul.train.parts import build_step
from longhaul.train.state import Progress, training_state
from longhaul.train.trainer import Identity, Parts, Trainer

STEPS = 8
TINY = (
    f"train={{steps={STEPS}}}", "batch.sequences=2", "optim.schedule.warmup_steps=2",
    "checkpoint.interval_steps=0", "evaluation.interval_steps=0", "model.layers=2",
    "monitor.gauge_interval_steps=4", "machine.compile=false",
    "machine.activation_checkpointing=none",
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "rhyme.jsonl"
    lines = [
        f'{{"text": "the cat {n} sat on the mat and the dog {n} ran to the cat"}}'
        for n in range(300)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe_of(name: str, text: Path) -> Recipe:
    twin = shrunken(load_recipe(name).recipe, own_data=True)
    small = load_recipe(name, twin).recipe
    less = ["model.value_embeddings=1"] if small.model.value_embeddings else []
    if small.tokenizer.kind == "bpe":
        less.append("tokenizer.vocab_size=300")
    return load_recipe(name, [*twin, *TINY, *less], data=str(text)).recipe


def trainer_of(recipe: Recipe, prepared: Path, folder: Path) -> Trainer:
    torch.set_num_threads(1)
    dataset = prepare(recipe, prepared, lambda _: None)
    device, clock = torch.device("cpu"), FakeClock()
    end_of_text = dataset.tokenizer.end_of_text
    return Trainer(
        recipe,
        LedgerState(),
        Parts(
            step=build_step(recipe, dataset.vocab_size, end_of_text, device),
            progress=Progress(recipe, dataset.identity),
            batches=BatchReader(dataset, recipe),
            dataset=dataset,
            saver=Saver(folder, attempt=1, still_owner=lambda: True, clock=clock),
            snapshots=SnapshotRing(64 << 20),
            time_buckets=TimeBuckets(clock),
            clock=clock,
        ),
        Identity(1, "1.00", 0),
    )  # fmt: skip


def state_of(trainer: Trainer) -> dict[str, bytes]:
    parts = trainer._parts
    state = capture(training_state(parts.step, parts.progress))
    return {
        name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in state.tensors.items()
        if name != "generators.cpu"
    }


@pytest.mark.parametrize("name", sorted(set(shipped_recipes()) - {"drill"}))
def test_a_recipes_twin_learns_and_resumes_exactly(name: str, text: Path, tmp_path: Path) -> None:
    recipe = recipe_of(name, text)
    undisturbed = trainer_of(recipe, tmp_path / "prepared", tmp_path / "a")
    losses = [record.loss for record in undisturbed.steps() if isinstance(record, StepRecord)]
    assert len(losses) == STEPS
    assert losses[-1] < losses[0]

    first = trainer_of(recipe, tmp_path / "prepared", tmp_path / "b")
    for record in first.steps():
        if record.step == 4:
            first.stop()
    list(first.save())
    list(first.saved(wait=True))
    second = trainer_of(recipe, tmp_path / "prepared", tmp_path / "b")
    parts = second._parts
    restore(tmp_path / "b" / "step-4", training_state(parts.step, parts.progress))
    again = [record.loss for record in second.steps() if isinstance(record, StepRecord)]
    assert again == losses[4:]
    assert state_of(second) == state_of(undisturbed)
