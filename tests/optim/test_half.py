import pytest
import torch
from torch import nn

import longhaul.optim.state as module
from longhaul.optim.state import gradients_of, in_float32, portions, state_like

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)


def weight(size, dtype=torch.float32):
    made = nn.Parameter(torch.linspace(-1, 1, size).to(dtype))
    made.grad = torch.ones_like(made)
    return made


@HALVES
def test_halves_are_updated_in_float32_and_rounded_back(dtype):
    half, full = weight(5, dtype), weight(3)
    with torch.no_grad(), in_float32([half, full]) as given:
        assert [tensor.dtype for tensor in given] == [torch.float32] * 2
        assert given[1] is full
        expected = (half.float() + 1e-3).to(dtype)
        torch._foreach_add_(given, 1e-3)
    assert torch.equal(half, expected)
    assert torch.equal(full, torch.linspace(-1, 1, 3) + 1e-3)


@HALVES
def test_every_finite_half_survives_the_round_trip(dtype):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = nn.Parameter(every[every.isfinite()].clone())
    before = finite.detach().clone()
    with torch.no_grad(), in_float32([finite]):
        pass
    assert torch.equal(finite.detach().view(torch.int16), before.view(torch.int16))


def test_gradients_and_state_of_halves_are_float32_and_others_are_not_copied():
    half, full = weight(4, torch.bfloat16), weight(4)
    gradients = gradients_of([half, full])
    assert gradients[0].dtype == torch.float32
    assert gradients[1] is full.grad
    assert state_like(half).dtype == state_like(full).dtype == torch.float32


def test_portions_cover_all_and_borrow_little_memory(monkeypatch):
    monkeypatch.setattr(module, "_MOST_AT_ONCE", 10)
    sizes = (4, 4, 4, 30, 1, 9, 2)
    halves = [weight(size, torch.bfloat16) for size in sizes]
    made = portions(halves)
    assert [number for portion in made for number in portion] == list(range(len(sizes)))
    assert all(len(p) == 1 or sum(sizes[n] for n in p) <= 10 for p in made)
    full = [weight(size) for size in sizes]
    assert portions(full) == [range(len(sizes))]
    assert len(portions(full, copies=True)) == len(made)
