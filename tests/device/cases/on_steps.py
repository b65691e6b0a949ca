"""The step, of every recipe and with every switch that changes it: it never waits for the device.

Each case makes steps with and without gauges, in two micro-batches.
"""

import pytest

from longhaul.config import model as model_section
from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.config.recipe import Recipe
from longhaul.config.size import shrunken
from longhaul.data.batches import Batch
from longhaul.model.initialise import build, to_number_format
from longhaul.optim.gate import LossScale
from longhaul.optim.update_rules import OPTIMIZERS, build_optimizer
from longhaul.parallel.recompute import checkpoint_activations
from longhaul.train.equality import random_batches
from longhaul.train.step import TrainingStep

VOCABULARY = 512
slow = pytest.mark.slow
"""Of the cases that differ from others in one switch more: `make test-slow` has all of them."""
SMALL = ("model.layers=2", "batch.sequences=4", "batch.micro_sequences=2")
PLAIN_RULES = sorted(OPTIMIZERS.keys() - {"muon"})
ONE_LAYER = "model.layers=1"
"""Where a case is about what updates weights: each operation costs a millisecond here."""


def recipe_of(name, *overrides: str) -> Recipe:
    recipe = load_recipe(name).recipe
    less = ["model.value_embeddings=1"] if recipe.model.value_embeddings else []
    return load_recipe(name, [*shrunken(recipe), *SMALL, *less, *overrides]).recipe


def step_of(fake, recipe: Recipe) -> TrainingStep:
    with fake.building():
        model = build(recipe.model, VOCABULARY, recipe.seed, fake.device, end_of_text=0)
        to_number_format(model, recipe.precision)
        half = recipe.precision.half_weights
        if recipe.machine.activation_checkpointing != "none":
            checkpoint_activations(model, recipe.machine.activation_checkpointing)
        return TrainingStep(
            model,
            build_optimizer(model, recipe.optim),
            fake.device,
            recipe.precision,
            recipe.seed,
            loss_scale=LossScale(recipe.optim.loss_scale, fake.device) if half == "fp16" else None,
            sources=["text"],
        )


def batches_of(recipe: Recipe) -> list[Batch]:
    return list(random_batches(recipe, VOCABULARY, 2, None))


def train(fake, recipe: Recipe) -> None:
    step = step_of(fake, recipe)
    for batch, read_gauges in zip(batches_of(recipe), (False, True), strict=True):
        figures = step(batch, 2, recipe.optim.lr, read_gauges)
        assert figures.device == fake.device
    assert fake.waited <= {"tests"}
    assert ("seed", fake.device.index) in fake.module.asked


FORMS = ("drill",)
"""`test_a_loss_by_chunks` has the one that differs most."""


@pytest.mark.parametrize(
    "name",
    [name if name in FORMS else pytest.param(name, marks=slow)
     for name in sorted(shipped_recipes())],
)  # fmt: skip
def test_a_recipe(fake, name: str) -> None:
    train(fake, recipe_of(name))


@pytest.mark.parametrize(
    "name",
    [name if name in ("adamw", "muon") else pytest.param(name, marks=slow)
     for name in sorted(OPTIMIZERS)],
)  # fmt: skip
def test_an_optimizer(fake, name: str) -> None:
    train(fake, recipe_of("drill", ONE_LAYER, f"optim.name={name}"))


@pytest.mark.parametrize("name", ["muon", *(pytest.param(n, marks=slow) for n in PLAIN_RULES)])
def test_an_optimizer_whose_state_is_on_the_host(fake, name: str) -> None:
    train(fake, recipe_of("drill", ONE_LAYER, f"optim.name={name}", "optim.offload=true"))


@pytest.mark.parametrize("weights", ["fp16", pytest.param("bf16", marks=slow)])
@pytest.mark.parametrize("name", ["muon", *(pytest.param(n, marks=slow) for n in PLAIN_RULES)])
def test_half_weights_and_a_loss_scale(fake, name: str, weights: str) -> None:
    compute = f"precision.compute={weights}_weights"
    train(fake, recipe_of("drill", ONE_LAYER, f"optim.name={name}", compute))


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("optim.rounding=stochastic",), marks=slow),
        pytest.param(("optim.rounding=compensated", "optim.name=muon"), marks=slow),
        pytest.param(("optim.cautious_decay=true", "optim.name=muon"), marks=slow),
        pytest.param(("optim.cautious_decay=true", "optim.name=adamw"), marks=slow),
    ],
    ids=lambda options: options[0],
)
def test_rounding_and_cautious_decay(fake, options: tuple[str, ...]) -> None:
    train(fake, recipe_of("drill", ONE_LAYER, "precision.compute=bf16_weights", *options))


@pytest.mark.parametrize(
    "name",
    [
        "speedrun-124m",
        *(pytest.param(n, marks=slow) for n in ("gpt2-124m", "opt-125m", "yalm-stable")),
    ],
)
def test_a_loss_by_chunks(fake, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(model_section, "CHUNK", 50 * VOCABULARY)
    monkeypatch.setattr(model_section, "_FEWEST_ROWS", 1)
    train(fake, recipe_of(name))


@slow
@pytest.mark.parametrize("name", ["drill", "speedrun-124m", "llama-8b"])
@pytest.mark.parametrize("how", ["full", "selective"])
def test_layers_that_are_computed_again(fake, name: str, how: str) -> None:
    train(fake, recipe_of(name, f"machine.activation_checkpointing={how}", "model.dropout=0.1"))


def test_a_rehearsal_leaves_the_device_alone(fake) -> None:
    recipe = recipe_of("drill")
    step = step_of(fake, recipe)
    with fake.building():
        step.rehearse(2, recipe.block_length())
    assert ("state", fake.device.index) in fake.module.asked
