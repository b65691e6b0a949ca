import math

import pytest
import torch

import longhaul.optim.adamw as module
from longhaul.optim.adamw import AdamW
from longhaul.optim.build import OPTIMIZERS, build_optimizer
from longhaul.optim.groups import make_groups, weight_decay

LOSS = torch.tensor(2.0)


@pytest.fixture(params=["fused", "guarded loop"], autouse=True)
def path(request, monkeypatch):
    """Every property holds on both paths: the fused kernel, and the loop inside the guard."""
    if request.param == "guarded loop":
        monkeypatch.setattr(module, "_FUSED_DEVICES", ())


def update(optimizer, loss=LOSS):
    gate = optimizer.judge(loss)
    optimizer.step(gate)
    optimizer.clear_gradients()
    return gate


def state(model, optimizer):
    named = dict(model.named_parameters()) | optimizer.tensors()
    return {name: tensor.detach().clone() for name, tensor in named.items()}


def same_bytes(one, other):
    # Compared as bytes: NaN equals NaN, and -0.0 differs from 0.0.
    assert one.keys() == other.keys()
    return [
        n for n in one if one[n].numpy().tobytes() != other[n].numpy().tobytes()
    ]  # names that differ


def test_the_registry_builds_what_a_recipe_can_name(model, settings):
    assert isinstance(build_optimizer(model, settings), AdamW)
    assert set(OPTIMIZERS) == {"adamw"}


def test_twenty_steps_equal_an_independent_float64_reference(model, settings, fill_gradients):
    settings = settings.model_copy(update={"clip": 0.5})
    decays = {
        name: weight_decay(group.role, settings)
        for group in make_groups(model)
        for name in group.names
    }
    exact = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in exact.items()}
    second = {name: torch.zeros_like(p) for name, p in exact.items()}
    optimizer = build_optimizer(model, settings)
    for t in range(1, 21):
        lr = 0.01 * t / 20
        fill_gradients(model, seed=t, scale=0.01 * t)
        grads = {name: p.grad.double().clone() for name, p in model.named_parameters()}
        optimizer.set_learning_rate(lr)
        gate = update(optimizer)
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads.values()))
        assert gate.gradient_norm.item() == pytest.approx(norm, rel=1e-5)
        for name, p in exact.items():
            g = grads[name] / max(1.0, (norm + 1e-6) / 0.5)
            first[name] = 0.8 * first[name] + 0.2 * g
            second[name] = 0.9 * second[name] + 0.1 * g * g
            root = (second[name] / (1 - 0.9**t)).sqrt() + 1e-6
            p -= lr * decays[name] * p + lr * first[name] / (1 - 0.8**t) / root
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach().double(), exact[name], atol=3e-6, rtol=1e-4)


def test_a_zero_gradient_step_shrinks_by_exactly_lr_times_decay(model, settings):
    optimizer = build_optimizer(model, settings)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    update(optimizer)
    for group in optimizer.groups:
        for name, p in zip(group.names, group.parameters, strict=True):
            if group.role == "vector":
                assert torch.equal(p, before[name]), name
            else:
                expected = before[name].double() * (1 - 1e-2 * 0.3)
                torch.testing.assert_close(
                    p.detach().double(), expected, rtol=1.2e-7, atol=0, msg=name
                )


def test_beta1_zero_means_no_momentum(model, settings, fill_gradients):
    settings = settings.model_copy(update={"beta1": 0.0, "weight_decay": 0.0})
    optimizer = build_optimizer(model, settings)
    fill_gradients(model, seed=1, scale=100.0)
    update(optimizer)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    update(optimizer)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_masked_step_changes_no_byte_and_the_next_goes_on(
    model, settings, fill_gradients, bad, where, clip
):
    optimizer = build_optimizer(model, settings.model_copy(update={"clip": clip}))
    fill_gradients(model, seed=1)
    update(optimizer)
    kept = state(model, optimizer)

    fill_gradients(model, seed=2)
    loss = LOSS.clone()
    if where == "loss":
        loss.fill_(bad)
    else:
        model.blocks[1].mlp.down.weight.grad[3, 5] = bad
    assert update(optimizer, loss).masked
    assert same_bytes(state(model, optimizer), kept) == []

    fill_gradients(model, seed=3)
    assert not update(optimizer).masked
    after = state(model, optimizer)
    for name, tensor in (dict(model.named_parameters()) | optimizer.tensors()).items():
        tensor.detach().copy_(kept[name])
    fill_gradients(model, seed=3)
    update(optimizer)
    assert same_bytes(state(model, optimizer), after) == []
    assert len(same_bytes(after, kept)) == len(kept)


def test_a_first_step_that_is_masked_leaves_the_state_as_allocated(model, settings, fill_gradients):
    optimizer = build_optimizer(model, settings)
    kept = state(model, optimizer)
    fill_gradients(model, seed=1, scale=math.nan)
    update(optimizer)
    assert same_bytes(state(model, optimizer), kept) == []


def test_state_allocated_early_gives_the_bits_of_torch_s_own(model, settings, fill_gradients):
    plain = torch.optim.AdamW(
        [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()],
        lr=1e-2, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.0, fused=bool(module._FUSED_DEVICES),
        foreach=None if module._FUSED_DEVICES else False,
    )  # fmt: skip
    theirs = plain.param_groups[0]["params"]
    optimizer = build_optimizer(model, settings.model_copy(update={"weight_decay": 0.0}))
    for seed in range(3):
        fill_gradients(model, seed=seed)
        for one, other in zip(theirs, model.parameters(), strict=True):
            one.grad = other.grad.clone()
        plain.step()
        update(optimizer)
    assert all(torch.equal(a, b) for a, b in zip(theirs, model.parameters(), strict=True))


def test_state_copied_into_a_new_optimizer_goes_on_bit_by_bit(model, settings, fill_gradients):
    optimizer = build_optimizer(model, settings)
    names = set(optimizer.tensors())
    fill_gradients(model, seed=1)
    update(optimizer)
    assert set(optimizer.tensors()) == names
    saved = state(model, optimizer)
    fill_gradients(model, seed=2)
    update(optimizer)
    expected = state(model, optimizer)

    restored = build_optimizer(model, settings)
    assert restored.facts() == optimizer.facts()
    for name, tensor in (dict(model.named_parameters()) | restored.tensors()).items():
        tensor.detach().copy_(saved[name])
    fill_gradients(model, seed=2)
    update(restored)
    assert same_bytes(state(model, restored), expected) == []


def test_names_of_state_follow_the_weights(model, settings):
    tensors = build_optimizer(model, settings).tensors()
    assert len(tensors) == 3 * len(list(model.parameters()))
    assert tensors["blocks.0.mlp.up.weight.exp_avg"].shape == (64, 16)
    assert tensors["blocks.0.mlp.up.weight.step"].shape == ()


def test_live_settings_are_what_was_asked_until_somebody_tampers(model, settings):
    optimizer = build_optimizer(model, settings)
    optimizer.set_learning_rate(3e-4)
    assert optimizer.live_settings() == optimizer.expected_settings(settings, 3e-4)
    optimizer._rules[0].beta1, optimizer._rules[0].beta2 = 0.9, 0.9
    live, expected = optimizer.live_settings(), optimizer.expected_settings(settings, 3e-4)
    different = {key for key in expected if live[key] != expected[key]}
    assert different == {f"{optimizer.groups[0].role}.beta1"}


def test_changed_settings_take_effect_and_keep_the_moments(model, settings, fill_gradients):
    optimizer = build_optimizer(model, settings)
    fill_gradients(model, seed=1)
    update(optimizer)
    moments = {name: t.clone() for name, t in optimizer.tensors().items()}
    changed = settings.model_copy(
        update={"beta1": 0.5, "eps": 1e-4, "weight_decay": 0.0, "clip": 0.25, "lr": 5e-3}
    )
    optimizer.apply_settings(changed)
    assert optimizer.live_settings() == optimizer.expected_settings(changed, 5e-3)
    assert same_bytes(optimizer.tensors(), moments) == []
    fill_gradients(model, seed=2)
    gate = optimizer.judge(LOSS)
    assert gate.divisor.item() == pytest.approx(gate.gradient_norm.item() / 0.25, rel=1e-4)


def test_gradients_are_gone_after_clearing(model, settings, fill_gradients):
    optimizer = build_optimizer(model, settings)
    fill_gradients(model, seed=1)
    update(optimizer)
    assert all(p.grad is None for p in model.parameters())


def test_training_under_bf16_autocast_stays_finite_and_learns(model, settings):
    optimizer = build_optimizer(model, settings.model_copy(update={"clip": 1.0}))
    tokens = torch.arange(9).repeat(4, 1)
    losses = []
    for _ in range(30):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens[:, :8], tokens[:, 1:]) / 32
        loss.backward()
        assert not update(optimizer, loss).masked
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert all(p.dtype == torch.float32 for p in model.parameters())
