import math

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from longhaul.optim.gate import judge

LOSS = torch.tensor(2.0)


def gradients(scale: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) * scale for shape in ((3, 4), (5,), (2, 2, 2))]


@hypothesis_settings(max_examples=30, deadline=None)
@given(clip=st.floats(0.01, 100), scale=st.floats(1e-6, 1e6))
def test_clipping_equals_torch(clip, scale):
    ours, theirs = gradients(scale), [torch.nn.Parameter(g) for g in gradients()]
    for parameter, gradient in zip(theirs, ours, strict=True):
        parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(theirs, clip)
    gate = judge(ours, LOSS, clip)
    torch.testing.assert_close(gate.gradient_norm, norm)
    assert not gate.masked
    for parameter, gradient in zip(theirs, ours, strict=True):
        torch.testing.assert_close(gradient / gate.divisor, parameter.grad)


def test_the_norm_is_the_root_of_summed_squares_not_a_sum_of_norms():
    gate = judge([torch.tensor([3.0]), torch.tensor([4.0])], LOSS, 0.0)
    assert gate.gradient_norm == 5.0


def test_without_a_clip_there_is_no_divisor():
    assert judge(gradients(), LOSS, 0.0).divisor is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["loss", "first", "last"])
def test_anything_not_finite_masks(bad, where):
    loss, grads = LOSS.clone(), gradients()
    target = {"loss": loss, "first": grads[0], "last": grads[2]}[where]
    target.view(-1)[-1] = bad
    assert judge(grads, loss, 1.0).masked


def test_opposite_infinities_do_not_cancel():
    grads = gradients()
    grads[0][0, 0], grads[0][0, 1] = math.inf, -math.inf
    assert judge(grads, LOSS, 1.0).masked


@hypothesis_settings(max_examples=30, deadline=None)
@given(clip=st.sampled_from([0.0, 0.1, 100.0]), power=st.integers(-10, 24))
def test_a_loss_scale_is_undone_in_norm_and_in_gradients(clip, power):
    scale = torch.tensor(2.0**power)
    plain = judge(gradients(), LOSS, clip)
    scaled = judge(gradients(scale.item()), LOSS, clip, scale)
    torch.testing.assert_close(scaled.gradient_norm, plain.gradient_norm)
    for one, other in zip(gradients(scale.item()), gradients(), strict=True):
        wanted = other if plain.divisor is None else other / plain.divisor
        torch.testing.assert_close(one / scaled.divisor, wanted)


def test_the_divisor_is_no_alias_of_the_scale():
    scale = torch.tensor(8.0)
    gate = judge(gradients(), LOSS, 0.0, scale)
    scale.mul_(2.0)
    assert gate.divisor == 8.0


def test_the_norm_of_fp16_gradients_may_exceed_fp16():
    grads = [torch.full((100,), 60000.0).half(), torch.ones(3)]
    gate = judge(grads, LOSS, 1.0)
    assert gate.gradient_norm.item() == pytest.approx(600_000.0, rel=1e-3)
    assert not gate.masked
    grads[0][7] = math.inf
    assert judge(grads, LOSS, 1.0).masked


def test_found_inf_is_masked_as_a_number():
    assert judge(gradients(), LOSS, 1.0).found_inf == 0.0
    assert judge(gradients(math.inf), LOSS, 1.0).found_inf == 1.0


def test_guard_undoes_any_in_place_change_when_masked_and_only_then():
    for bad in (False, True):
        gate = judge(gradients(), torch.tensor(math.nan) if bad else LOSS, 1.0)
        momentum, step = torch.ones(3), torch.tensor(7, dtype=torch.int64)
        with gate.guard([momentum, step]):
            momentum.mul_(math.nan)
            step.add_(1)
        assert bool(momentum.isnan().all()) is not bad
        assert step == (7 if bad else 8)
