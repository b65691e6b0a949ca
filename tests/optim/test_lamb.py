import math

import pytest
import torch

from longhaul.optim.groups import make_groups, weight_decay
from longhaul.optim.update_rules import build_optimizer


def lamb(model, settings, **changes):
    return build_optimizer(model, settings.model_copy(update={"name": "lamb", **changes}))


@pytest.mark.parametrize("clip", [0.0, 0.5])
def test_twelve_steps_equal_an_independent_float64_reference(
    model, settings, fill_gradients, update, clip
):
    decays = {
        name: weight_decay(group.role, settings)
        for group in make_groups(model)
        for name in group.names
    }
    exact = {name: p.detach().double().clone() for name, p in model.named_parameters()}
    first = {name: torch.zeros_like(p) for name, p in exact.items()}
    second = {name: torch.zeros_like(p) for name, p in exact.items()}
    optimizer = lamb(model, settings, clip=clip)
    for t in range(1, 13):
        lr = 0.01 * t / 12
        fill_gradients(model, seed=t, scale=0.01 * t)
        norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
        for name, p in model.named_parameters():
            g = p.grad.double() / (max(1.0, (norm + 1e-6) / clip) if clip else 1.0)
            first[name] = 0.8 * first[name] + 0.2 * g
            second[name] = 0.9 * second[name] + 0.1 * g * g
            root = (second[name] / (1 - 0.9**t)).sqrt() + 1e-6
            u = first[name] / (1 - 0.8**t) / root + decays[name] * exact[name]
            x_norm, u_norm = exact[name].norm(), u.norm()
            trust = float(x_norm / u_norm) if x_norm > 0 and u_norm > 0 else 1.0
            exact[name] -= lr * trust * u
        optimizer.set_learning_rate(lr)
        update(optimizer)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach().double(), exact[name], atol=3e-6, rtol=1e-4)


def test_a_step_is_as_long_as_lr_times_the_weight(model, settings, fill_gradients, update):
    optimizer = lamb(model, settings, lr=0.01)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    fill_gradients(model, seed=1)
    update(optimizer)
    for name, p in model.named_parameters():
        if norm := before[name].norm().item():
            assert (p - before[name]).norm().item() == pytest.approx(0.01 * norm, rel=1e-3), name


def test_a_weight_of_zeros_can_leave_zero(model, settings, fill_gradients, update):
    optimizer = lamb(model, settings, lr=0.01)
    assert not model.blocks[0].mlp.up.bias.any()
    fill_gradients(model, seed=1)
    update(optimizer)
    assert model.blocks[0].mlp.up.bias.detach().abs().min() > 5e-3
