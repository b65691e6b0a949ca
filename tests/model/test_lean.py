import pytest
import torch
from torch.nn import functional

from longhaul.model.layers import squared_relu, unit_rms


def given(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, generator=generator).requires_grad_()


@pytest.mark.parametrize("weighted", [False, True])
def test_unit_rms_and_its_gradients_are_torchs(weighted):
    x, weight = given(3, 5, 8), given(8) if weighted else None
    gradient = given(3, 5, 8).detach()
    wanted = given(3, 5, 8)
    with torch.no_grad():
        wanted.copy_(x)
    ours = unit_rms(x, 1e-5, weight)
    ours.backward(gradient)
    weight_gradient = weight.grad.clone() if weight is not None else None
    if weight is not None:
        weight.grad = None
    theirs = functional.rms_norm(wanted, (8,), weight, 1e-5)
    theirs.backward(gradient)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(x.grad, wanted.grad)
    if weight is not None:
        torch.testing.assert_close(weight_gradient, weight.grad)


def test_gradients_hold_against_small_differences():
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squared_relu, (x,))


def test_a_zero_vector_stays_finite():
    x = torch.zeros(2, 8, requires_grad=True)
    unit_rms(x, 1e-6).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_squared_relu_and_its_gradient_are_torchs(dtype):
    x, wanted = (given(4, 6).detach().to(dtype).requires_grad_() for _ in range(2))
    squared_relu(x).backward(torch.ones(4, 6, dtype=dtype))
    functional.relu(wanted).square().backward(torch.ones(4, 6, dtype=dtype))
    torch.testing.assert_close(x.grad, wanted.grad)


@pytest.mark.parametrize("operation", [lambda x: unit_rms(x, 1e-5), squared_relu])
def test_nan_comes_through(operation):
    x = torch.tensor([[1.0, float("nan")]], requires_grad=True)
    out = operation(x)
    out.sum().backward()
    assert torch.isnan(out).any()
