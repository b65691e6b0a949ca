"""What every optimizer keeps, in every precision of the weights."""

import copy
import math

import pytest
import torch

import longhaul.optim.optimizer as rules
from longhaul.config.optim import OptimSection
from longhaul.core.errors import NeedsPerson
from longhaul.model.weights import ROLES, Linear
from longhaul.optim.groups import weight_decay
from longhaul.optim.update_rules import OPTIMIZERS, build_optimizer

EVERY = pytest.mark.parametrize("name", ["adamw", "muon", "lamb", "sgdw"])
PRECISIONS = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str
)


@pytest.fixture(params=["fused", "loop", "offloaded"], autouse=True)
def path(request, monkeypatch):
    """Every property holds on all paths: torch's fused kernels, loops inside the guard, and state
    that is lent from the host."""
    if request.param == "loop":
        monkeypatch.setattr(rules, "FUSED_DEVICES", ())
    return request.param


@pytest.fixture
def make(model, settings, path):
    def make(name, dtype=torch.float32, **changes):
        changes |= {"name": name, "offload": path == "offloaded"}
        changed = OptimSection(**{**settings.model_dump(), **changes})
        return build_optimizer(model.to(dtype), changed), changed

    return make


def test_the_registry_builds_what_a_recipe_can_name():
    names = OptimSection.model_fields["name"].annotation.__args__
    assert set(OPTIMIZERS) == set(names)


@EVERY
@PRECISIONS
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_masked_step_changes_no_byte_and_the_next_goes_on(
    model, make, fill_gradients, update, state, put_back, differing, name, dtype, bad, where
):
    optimizer, _ = make(name, dtype, clip=1.0 if where == "loss" else 0.0)
    fill_gradients(model, seed=1)
    with torch.no_grad():
        model.blocks[0].mlp.up.weight[0, :2] = torch.tensor([0.0, -0.0])
        for parameter in model.parameters():
            parameter.grad.view(-1)[:3] = -0.0  # leaves -0.0 in moments
    update(optimizer)
    kept = state(model, optimizer)

    fill_gradients(model, seed=2)
    if where == "gradient":
        model.blocks[1].mlp.down.weight.grad[3, 5] = bad
        model.blocks[1].mlp.down.bias.grad[3] = bad
    assert update(optimizer, bad if where == "loss" else 2.0).masked
    assert differing(state(model, optimizer), kept) == []

    fill_gradients(model, seed=3)
    assert not update(optimizer).masked
    after = state(model, optimizer)
    put_back(model, optimizer, kept)
    fill_gradients(model, seed=3)
    update(optimizer)
    assert differing(state(model, optimizer), after) == []
    # A half may be too coarse to show a small step; a norm's scale of 1 above all.
    expected = kept.keys() if dtype is torch.float32 else optimizer.tensors().keys()
    assert set(differing(after, kept)) >= set(expected)


@EVERY
def test_a_first_step_that_is_masked_leaves_the_state_as_allocated(
    model, make, fill_gradients, update, state, differing, name
):
    optimizer, _ = make(name)
    with torch.no_grad():
        model.tokens.weight[0, 0] = -0.0
        model.blocks[0].mlp.up.weight[0, 0] = -0.0
    kept = state(model, optimizer)
    fill_gradients(model, seed=1, scale=math.nan)
    update(optimizer)
    assert differing(state(model, optimizer), kept) == []


@EVERY
@PRECISIONS
def test_a_zero_gradient_step_shrinks_by_exactly_lr_times_decay(model, make, update, name, dtype):
    factors = {"matrix": 1.0, "embedding": 2.0, "position": 0.5, "head": 3.0, "vector": 1.0}
    optimizer, settings = make(name, dtype, lr=0.1, lr_factors=factors)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    update(optimizer)
    for group in optimizer.groups:
        decay = weight_decay(group.role, settings)
        share = 0.1 * factors[group.role] * decay
        if name == "lamb" and decay:
            share = 0.1 * factors[group.role]  # decay alone sets the direction: see `LambRule`
        for weight_name, p in zip(group.names, group.parameters, strict=True):
            if share == 0:
                assert torch.equal(p, before[weight_name]), weight_name
                continue
            expected = (before[weight_name].double() * (1 - share)).to(dtype)
            # LAMB takes two norms and their quotient, each rounded.
            rounding = (8 if name == "lamb" else 1) * 2**-23 if dtype is torch.float32 else 2**-10
            rounding = 2**-7 if dtype is torch.bfloat16 else rounding
            torch.testing.assert_close(p.detach(), expected, rtol=rounding, atol=0, msg=weight_name)
            if dtype is not torch.float32:
                assert (p.detach() == expected).float().mean() > 0.99


@EVERY
@PRECISIONS
def test_without_momentum_no_earlier_gradient_matters(
    model, make, fill_gradients, update, name, dtype
):
    optimizer, _ = make(
        name, dtype, beta1=0.0, weight_decay=0.0,
        muon={"momentum": 0.0, "nesterov": False}, sgdw={"momentum": 0.0},
    )  # fmt: skip
    fill_gradients(model, seed=1)
    update(optimizer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    update(optimizer)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@EVERY
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
def test_half_weights_move_like_float32_ones_rounded_after_each_step(
    model, make, settings, fill_gradients, update, name, half
):
    optimizer, changed = make(name, half, clip=0.5)
    full = copy.deepcopy(model).float()
    reference = build_optimizer(full, changed)
    for seed in range(10):
        fill_gradients(model, seed=seed)
        for weight, halved in zip(full.parameters(), model.parameters(), strict=True):
            weight.grad = halved.grad.float()
        assert update(optimizer).gradient_norm == update(reference).gradient_norm
        for weight in full.parameters():
            weight.data.copy_(weight.data.to(half))
    for weight, halved in zip(full.parameters(), model.parameters(), strict=True):
        assert halved.dtype == half
        assert torch.equal(halved.float(), weight)
    for (key, tensor), (_, other) in zip(
        optimizer.tensors().items(), reference.tensors().items(), strict=True
    ):
        assert tensor.dtype == torch.float32, key
        assert torch.equal(tensor, other), key


@EVERY
@PRECISIONS
def test_state_copied_into_a_new_optimizer_goes_on_bit_by_bit(
    model, make, fill_gradients, update, state, put_back, differing, name, dtype
):
    changes = {"muon": {"momentum_warmup_steps": 4}}
    optimizer, _ = make(name, dtype, **changes)
    names = set(optimizer.tensors())
    fill_gradients(model, seed=1)
    update(optimizer)
    assert set(optimizer.tensors()) == names
    saved = state(model, optimizer)
    fill_gradients(model, seed=2)
    update(optimizer)
    expected = state(model, optimizer)

    restored, _ = make(name, dtype, **changes)
    put_back(model, restored, saved)
    restored.take_back(restored.tensors(), optimizer.facts())
    fill_gradients(model, seed=2)
    update(restored)
    assert differing(state(model, restored), expected) == []


def test_the_state_of_another_optimizer_is_refused(make):
    optimizer, _ = make("muon")
    with pytest.raises(NeedsPerson, match="optimizer adamw, not of muon"):
        optimizer.take_back({}, {"name": "adamw"})


@EVERY
def test_live_settings_are_what_was_asked_until_somebody_tampers(make, name):
    optimizer, settings = make(name, lr_factors={"head": 0.25})
    optimizer.set_learning_rate(3e-4)
    live = optimizer.live_settings()
    assert live == optimizer.expected_settings(settings, 3e-4)
    assert (live["matrix.lr"], live["head.lr"]) == (3e-4, 0.75e-4)
    assert live["vector.weight_decay"] == 0.0
    optimizer.rules[0].numbers["weight_decay"] = 0.9
    live, expected = optimizer.live_settings(), optimizer.expected_settings(settings, 3e-4)
    assert {key for key in expected if live[key] != expected[key]} == {"matrix.weight_decay"}


@EVERY
def test_changed_settings_take_effect_and_keep_the_state(
    model, make, fill_gradients, update, differing, name
):
    optimizer, settings = make(name)
    fill_gradients(model, seed=1)
    update(optimizer)
    before = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    changed = OptimSection(
        **settings.model_dump()
        | {"beta1": 0.5, "eps": 1e-4, "weight_decay": 0.0, "clip": 0.25, "lr": 5e-3}
        | {"muon": {"momentum": 0.5, "scale": "rms"}, "lr_factors": {"matrix": 2.0}}
    )
    optimizer.apply_settings(changed)
    assert optimizer.live_settings() == optimizer.expected_settings(changed, 5e-3)
    assert optimizer.live_settings()["matrix.lr"] == 1e-2
    assert differing(optimizer.tensors(), before) == []
    fill_gradients(model, seed=2)
    gate = optimizer.judge(torch.tensor(2.0))
    assert gate.divisor.item() == pytest.approx(gate.gradient_norm.item() / 0.25, rel=1e-4)


@EVERY
def test_a_role_at_rate_zero_stands_still(model, make, fill_gradients, update, name):
    optimizer, _ = make(name, lr_factors={"embedding": 0.0})
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fill_gradients(model, seed=1)
    update(optimizer)
    moved = {key for key, p in model.named_parameters() if not torch.equal(p, before[key])}
    assert moved == before.keys() - {"tokens.weight"}


@EVERY
def test_a_loss_scale_changes_no_update(model, make, fill_gradients, update, state, put_back, name):
    optimizer, _ = make(name, clip=0.5)
    fresh = state(model, optimizer)
    fill_gradients(model, seed=1)
    plain = update(optimizer)
    expected = state(model, optimizer)
    put_back(model, optimizer, fresh)
    scale = torch.tensor(1024.0)
    fill_gradients(model, seed=1, scale=1024.0)
    scaled = update(optimizer, scale=scale)
    torch.testing.assert_close(scaled.gradient_norm, plain.gradient_norm)
    for key, tensor in state(model, optimizer).items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-4, atol=1e-6, msg=key)


@EVERY
def test_gradients_are_gone_after_clearing_and_weights_without_one_stay(
    model, make, fill_gradients, update, state, name
):
    optimizer, _ = make(name)
    fill_gradients(model, seed=1)
    model.tokens.weight.grad = None
    kept = state(model, optimizer)
    update(optimizer)
    assert all(p.grad is None for p in model.parameters())
    after = state(model, optimizer)
    of_tokens = [key for key in kept if key.startswith("tokens.")]
    assert all(torch.equal(after[key], kept[key]) for key in of_tokens)
    assert not torch.equal(after["head.weight"], kept["head.weight"])


@EVERY
@PRECISIONS
def test_a_quadratic_is_descended(settings, update, name, dtype):
    torch.manual_seed(0)
    bowl = Linear(8, 8, bias=True).to(dtype)
    goals = [torch.randn(p.shape, dtype=dtype) for p in bowl.parameters()]
    with torch.no_grad():
        for p in bowl.parameters():
            p.normal_()

    def away():
        pairs = zip(bowl.parameters(), goals, strict=True)
        return sum(float((p - goal).detach().float().square().sum()) for p, goal in pairs)

    first = away()
    peak = {"adamw": 0.2, "muon": 0.3, "lamb": 0.1, "sgdw": 0.2}[name]
    changed = settings.model_copy(update={"name": name, "weight_decay": 0.0})
    optimizer = build_optimizer(bowl, changed)
    for step in range(60):
        for p, goal in zip(bowl.parameters(), goals, strict=True):
            p.grad = (p - goal).detach()
        optimizer.set_learning_rate(peak * (1 - step / 60))
        assert not update(optimizer, away()).masked
    # Muon's steps do not shorten near the goal; only the rate brings it to rest.
    assert away() < first / (25 if name == "muon" else 100)


def test_there_is_a_rate_for_every_role():
    assert set(OptimSection(lr=1.0).lr_factors.model_dump()) == set(ROLES)
