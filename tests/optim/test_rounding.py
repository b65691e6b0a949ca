"""How half weights take updates that are too small for them."""

import math

import pytest
import torch

from longhaul.config.load import load_recipe
from longhaul.config.size import shrunken
from longhaul.core.errors import RecipeError
from longhaul.optim.state import in_float32
from longhaul.optim.update_rules import build_optimizer
from longhaul.train.equality import make_step, random_batches

EVERY = pytest.mark.parametrize("name", ["adamw", "muon", "lamb", "sgdw"])
ROUNDINGS = pytest.mark.parametrize("rounding", ["stochastic", "compensated"])


@pytest.fixture
def make(model, settings):
    def make(name, rounding, dtype=torch.bfloat16, **changes):
        changes |= {"name": name, "rounding": rounding}
        return build_optimizer(model.to(dtype), settings.model_copy(update=changes))

    return make


@pytest.mark.parametrize(
    ("rounding", "mean", "spread"),
    [("nearest", 1.0, 0.0), ("stochastic", 0.9, 0.1), ("compensated", 0.9, 0.003)],
)
def test_a_hundred_small_updates_reach_what_float32_reaches(rounding, mean, spread):
    """Each is a quarter of a unit in the last place of a weight that is a little below 1."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(4096, dtype=torch.bfloat16))
    lost = [torch.zeros(4096, dtype=torch.bfloat16)] if rounding == "compensated" else []
    with torch.no_grad():
        for _ in range(100):
            with in_float32([weight], rounding, lost, torch.tensor(False)) as given:
                given[0].sub_(0.001)
    assert weight.float().mean().item() == pytest.approx(mean, abs=0.002)
    assert (weight.float() - mean).abs().max().item() <= spread


def test_chance_is_fair_on_both_sides_of_zero_and_spares_what_bfloat16_has():
    torch.manual_seed(0)
    values = torch.tensor([1 + 2**-9, -1 - 2**-9, 3e-39, 1.0, -0.0, math.inf])
    sums = torch.zeros(6, dtype=torch.float64)
    for _ in range(4000):
        weight = torch.nn.Parameter(torch.zeros(6, dtype=torch.bfloat16))
        with torch.no_grad(), in_float32([weight], "stochastic") as given:
            given[0].copy_(values)
        sums += weight.detach().double()
    torch.testing.assert_close((sums / 4000)[:3], values[:3].double(), rtol=3e-4, atol=0)
    assert sums[3] == 4000
    assert math.copysign(1, weight[4].item()) == -1
    assert weight[5].isinf()


@EVERY
@ROUNDINGS
def test_a_masked_step_changes_no_byte(
    model, make, fill_gradients, update, state, differing, name, rounding
):
    optimizer = make(name, rounding)
    for seed in range(4):
        fill_gradients(model, seed=seed, scale=1e-3)
        update(optimizer)
    kept = state(model, optimizer)
    fill_gradients(model, seed=5, scale=math.nan)
    update(optimizer)
    assert differing(kept, state(model, optimizer)) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_masked_step_keeps_remainders_of_half_a_unit(dtype):
    """They and their weights may add up to what rounds to the next weight."""
    weight = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=dtype).nextafter(torch.tensor(2.0)))
    unit = weight[0].item() - 1
    lost = torch.tensor([unit / 2, -unit / 2], dtype=dtype)
    before, left = weight.detach().clone(), lost.clone()
    with torch.no_grad(), in_float32([weight], "compensated", [lost], torch.tensor(True)) as given:
        given[0].mul_(1.0)
    assert torch.equal(weight.detach(), before)
    assert torch.equal(lost, left)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_lost_is_state_and_goes_on_bit_by_bit(
    model, make, fill_gradients, update, state, put_back, differing, name, dtype
):
    optimizer = make(name, "compensated", dtype)
    fill_gradients(model, seed=1)
    update(optimizer)
    saved = state(model, optimizer)
    assert saved["blocks.0.mlp.up.weight.lost"].dtype == dtype
    assert saved["blocks.0.mlp.up.weight.lost"].any()
    fill_gradients(model, seed=2)
    update(optimizer)
    expected = state(model, optimizer)
    restored = make(name, "compensated", dtype)
    put_back(model, restored, saved)
    fill_gradients(model, seed=2)
    update(restored)
    assert differing(state(model, restored), expected) == []


@EVERY
def test_float32_weights_have_nothing_to_lose(make, name):
    assert not [key for key in make(name, "compensated", torch.float32).tensors() if "lost" in key]
    assert not [key for key in make(name, "nearest").tensors() if "lost" in key]


def test_chance_depends_on_seed_and_draw_alone():
    """A run that is resumed has the bits of one that went on."""
    base = [*shrunken(load_recipe("quickstart").recipe), 'precision.compute="bf16_weights"']
    recipe = load_recipe("quickstart", [*base, 'optim.rounding="stochastic"']).recipe
    found = []
    for disturbed in (False, True):
        step = make_step(recipe, 64, torch.device("cpu"), None)
        for batch, _ in zip(random_batches(recipe, 64, 2, None), range(2), strict=False):
            if disturbed:
                torch.rand(7)
            step(batch, recipe.batch.sequences, 1e-4, False)
        found.append([weight.detach().clone() for weight in step.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_draws_differ_between_steps(monkeypatch):
    keys = []
    monkeypatch.setattr("longhaul.train.step.key_generators", lambda key, device: keys.append(key))
    options = ['precision.compute="bf16_weights"', 'optim.rounding="stochastic"']
    recipe = load_recipe("quickstart", [*shrunken(load_recipe("quickstart").recipe), *options])
    step = make_step(recipe.recipe, 64, torch.device("cpu"), None)
    for batch, _ in zip(random_batches(recipe.recipe, 64, 2, None), range(2), strict=False):
        step(batch, recipe.recipe.batch.sequences, 1e-4, False)
    assert len(set(keys)) == len(keys) == 4  # a micro-batch and an update of each step


@pytest.mark.parametrize(
    ("compute", "rounding", "named"),
    [
        ("float32", "stochastic", "float32 weights are not rounded"),
        ("bf16", "compensated", "float32 weights are not rounded"),
        ("fp16_weights", "stochastic", "fp16 weights have another exponent"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(compute, rounding, named):
    options = [f'precision.compute="{compute}"', f'optim.rounding="{rounding}"']
    with pytest.raises(RecipeError, match=f"optim.rounding: {rounding}: {named}"):
        load_recipe("quickstart", options)


def test_many_processes_are_refused_by_name_where_they_would_draw_otherwise(model, settings):
    with pytest.raises(RecipeError, match=r"optim\.rounding: stochastic"):
        build_optimizer(
            model, settings.model_copy(update={"rounding": "stochastic"}), sharding=object()
        )
