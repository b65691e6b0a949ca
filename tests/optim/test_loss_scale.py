import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from longhaul.config.optim import LossScaleSection
from longhaul.optim.gate import LossScale, judge
from longhaul.optim.update_rules import build_optimizer

CPU = torch.device("cpu")


def gate(overflow):
    return judge([torch.tensor([math.inf if overflow else 1.0])], torch.tensor(1.0), 1.0)


def after(scale, overflows):
    return [bool(scale.update(gate(overflow))) for overflow in overflows]


@hypothesis_settings(max_examples=30, deadline=None)
@given(overflows=st.lists(st.booleans(), max_size=30), interval=st.integers(1, 4))
def test_scales_go_as_those_of_torch_s_grad_scaler(overflows, interval):
    settings = LossScaleSection(
        initial=64.0, growth_interval=interval, floor=2.0**-60, ceiling=2.0**60
    )
    ours = LossScale(settings, CPU)
    theirs, steps = torch.full((), 64.0), torch.zeros((), dtype=torch.int32)
    for overflow in overflows:
        torch._amp_update_scale_(theirs, steps, torch.tensor(float(overflow)), 2.0, 0.5, interval)
        ours.update(gate(overflow))
        assert ours.scale == theirs
        assert ours.tensors()["good_steps"] == steps


def test_floor_and_ceiling_hold_and_an_overflow_at_the_floor_is_said():
    settings = LossScaleSection(initial=4.0, growth_interval=1, floor=1.0, ceiling=8.0)
    scale = LossScale(settings, CPU)
    assert after(scale, [False, False]) == [False, False]
    assert scale.scale == 8.0
    assert after(scale, [True, True, True, True, True]) == [False, False, False, True, True]
    assert scale.scale == 1.0
    assert after(scale, [False]) == [False]
    assert scale.scale == 2.0


def test_the_scale_goes_on_from_a_checkpoint():
    settings = LossScaleSection(initial=64.0, growth_interval=3)
    pattern = [False, True, False, False]
    whole, first, second = (LossScale(settings, CPU) for _ in range(3))
    after(first, pattern)
    for name, tensor in second.tensors().items():
        tensor.copy_(first.tensors()[name])
    second.take_back(second.tensors(), first.facts())
    after(second, pattern)
    after(whole, pattern * 2)
    assert all(torch.equal(second.tensors()[name], t) for name, t in whole.tensors().items())


def test_settings_are_read_back_and_change_without_touching_the_scale():
    settings = LossScaleSection(initial=64.0)
    scale = LossScale(settings, CPU)
    assert scale.live_settings() == scale.expected_settings(settings)
    changed = settings.model_copy(update={"growth_interval": 1, "growth_factor": 4.0})
    assert scale.live_settings() != scale.expected_settings(changed)
    scale.apply_settings(changed)
    assert scale.live_settings() == scale.expected_settings(changed)
    assert scale.scale == 64.0
    after(scale, [False])
    assert scale.scale == 256.0


@pytest.mark.parametrize("name", ["adamw", "muon", "lamb", "sgdw"])
def test_fp16_training_finds_its_scale_and_learns(settings, name):
    # Gradients of some 1e-5, at a scale of 2^36, overflow fp16 until the scale has come down.
    weight = torch.nn.Linear(8, 8, bias=False).half()
    goal = torch.linspace(-1, 1, 64).view(8, 8)
    changed = settings.model_copy(update={"name": name, "weight_decay": 0.0, "clip": 1.0})
    optimizer = build_optimizer(weight, changed)
    scale = LossScale(LossScaleSection(initial=2.0**36, ceiling=2.0**36), CPU)
    masked, losses = [], []
    for step in range(60):
        loss = 1e-3 * (weight.weight.float() - goal).square().mean()
        scale.scale_loss(loss).backward()
        gate = optimizer.judge(loss.detach(), scale.scale)
        # The gradient is tiny, and SGD follows its length: it needs a rate that fp16 can see.
        optimizer.set_learning_rate((100.0 if name == "sgdw" else 0.1) * (1 - step / 60))
        optimizer.step(gate)
        optimizer.clear_gradients()
        assert not scale.update(gate)
        masked.append(bool(gate.masked))
        losses.append(loss.item())
    assert masked[0]
    assert not any(masked[30:])
    assert losses[-1] < losses[0] * 0.5
