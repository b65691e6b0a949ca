"""Weight decay where the update agrees with it, against a loop in float64."""

import math

import pytest
import torch

import longhaul.optim.optimizer as rules
from longhaul.config.load import load_recipe
from longhaul.core.errors import RecipeError
from longhaul.optim import muon
from longhaul.optim.update_rules import build_optimizer

BOTH = pytest.mark.parametrize("name", ["adamw", "muon"])


@pytest.fixture(params=["fused", "loop", "offloaded"], autouse=True)
def path(request, monkeypatch):
    if request.param == "loop":
        monkeypatch.setattr(rules, "FUSED_DEVICES", ())
    return request.param


@pytest.fixture
def make(model, settings, path):
    def make(name, **changes):
        changes |= {"name": name, "offload": path == "offloaded"}
        changed = settings.model_copy(update=changes)
        return build_optimizer(model, changed)

    return make


def test_adamw_equals_a_float64_loop(model, make, fill_gradients, update):
    optimizer = make("adamw", cautious_decay=True, clip=0.5)
    decays = {n: rule.numbers["weight_decay"] for rule in optimizer.rules for n in rule.group.names}
    exact = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in exact.items()}
    second = {name: torch.zeros_like(p) for name, p in exact.items()}
    spared = 0
    for t in range(1, 11):
        fill_gradients(model, seed=t)
        grads = {name: p.grad.double().clone() for name, p in model.named_parameters()}
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
        update(optimizer)
        for name, p in exact.items():
            g = grads[name] / max(1.0, (norm + 1e-6) / 0.5)
            first[name] = 0.8 * first[name] + 0.2 * g
            second[name] = 0.9 * second[name] + 0.1 * g * g
            root = (second[name] / (1 - 0.9**t)).sqrt() + 1e-6
            move = first[name] / (1 - 0.8**t) / root
            agrees = move * p >= 0
            spared += int((~agrees).sum())
            p -= 0.01 * (move + decays[name] * p * agrees)
    assert spared > 1000
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach().double(), exact[name], atol=3e-6, rtol=1e-4)


def test_muon_decays_where_its_step_goes_towards_zero(model, make, fill_gradients, update):
    """Steps do not depend on decay: what is left is the decay, place by place."""
    matrix = model.blocks[0].mlp.up.weight
    start = matrix.detach().clone()
    moved = {}
    for what, changes in {
        "plain": {"weight_decay": 0.0},
        "cautious": {"weight_decay": 0.3, "cautious_decay": True},
    }.items():
        with torch.no_grad():
            matrix.copy_(start)
        fill_gradients(model, seed=1)
        update(make("muon", **changes))
        moved[what] = matrix.detach().double() - start.double()
    agrees = moved["plain"] * start <= 0
    assert 0.3 < agrees.double().mean() < 0.7
    decay = moved["cautious"] - moved["plain"]
    torch.testing.assert_close(
        decay, -0.01 * 0.3 * start * agrees, rtol=0, atol=1e-7, check_dtype=False
    )


def test_muon_decays_a_stack_at_once_with_the_same_bits(
    model, make, fill_gradients, update, state, put_back, differing, monkeypatch
):
    optimizer = make("muon", weight_decay=0.3, cautious_decay=True)
    start, results = state(model, optimizer), []
    for at_once in (False, True):
        monkeypatch.setattr(muon, "queues", lambda device, at_once=at_once: at_once)
        put_back(model, optimizer, start)
        for seed in (1, 2):
            fill_gradients(model, seed=seed)
            update(optimizer)
        results.append(state(model, optimizer))
    assert differing(*results) == []


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_masked_step_changes_no_byte(
    model, make, fill_gradients, update, state, differing, name, dtype
):
    model.to(dtype)
    optimizer = make(name, cautious_decay=True)
    fill_gradients(model, seed=1)
    with torch.no_grad():
        model.blocks[0].mlp.up.weight[0, :2] = torch.tensor([0.0, -0.0])
    update(optimizer)
    kept = state(model, optimizer)
    fill_gradients(model, seed=2, scale=math.nan)
    update(optimizer)
    assert differing(kept, state(model, optimizer)) == []
    fill_gradients(model, seed=3)
    update(optimizer)
    assert "blocks.0.mlp.up.weight" in differing(kept, state(model, optimizer))


@BOTH
def test_without_it_nothing_changes_and_it_is_read_back(model, make, name):
    optimizer = make(name, cautious_decay=True)
    assert optimizer.live_settings()["matrix.cautious_decay"] == 1.0
    assert make(name).live_settings()["matrix.cautious_decay"] == 0.0


@pytest.mark.parametrize("name", ["lamb", "sgdw"])
def test_rules_that_cannot_are_named(name):
    with pytest.raises(RecipeError, match=f"optim.cautious_decay: {name} decays"):
        load_recipe("quickstart", [f"optim.name={name!r}", "optim.cautious_decay=true"])
