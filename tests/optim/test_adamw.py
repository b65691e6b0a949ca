import math

import pytest
import torch

import longhaul.optim.optimizer as rules
from longhaul.optim.groups import make_groups, weight_decay
from longhaul.optim.update_rules import build_optimizer


@pytest.fixture(params=["fused kernel", "guarded loop"], autouse=True)
def path(request, monkeypatch):
    if request.param == "guarded loop":
        monkeypatch.setattr(rules, "FUSED_DEVICES", ())


def test_twenty_steps_equal_an_independent_float64_reference(
    model, settings, fill_gradients, update
):
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


def test_state_allocated_early_gives_the_bits_of_torch_s_own(
    model, settings, fill_gradients, update
):
    fused = bool(rules.FUSED_DEVICES)
    plain = torch.optim.AdamW(
        [torch.nn.Parameter(p.detach().clone()) for p in model.parameters()],
        lr=1e-2, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.0, fused=fused,
        foreach=None if fused else False,
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


def test_names_of_state_follow_the_weights(model, settings):
    tensors = build_optimizer(model, settings).tensors()
    assert len(tensors) == 3 * len(list(model.parameters()))
    assert tensors["blocks.0.mlp.up.weight.exp_avg"].shape == (64, 16)
    assert tensors["blocks.0.mlp.up.weight.step"].shape == ()


def test_training_under_bf16_autocast_stays_finite_and_learns(model, settings):
    optimizer = build_optimizer(model, settings.model_copy(update={"clip": 1.0}))
    tokens = torch.arange(9).repeat(4, 1)
    losses = []
    for _ in range(20):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(tokens[:, :8], tokens[:, 1:]) / 32
        loss.backward()
        gate = optimizer.judge(loss.detach())
        assert not gate.masked
        optimizer.step(gate)
        optimizer.clear_gradients()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert all(p.dtype == torch.float32 for p in model.parameters())
