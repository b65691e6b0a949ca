from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.run.drill.bit_flips import flip, flip_root, flip_weight


@settings(max_examples=60)
@given(
    st.integers(0, 31), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.sampled_from([(1,), (5,), (3, 4), ()]),
)  # fmt: skip
def test_one_bit_of_one_element_turns_over_and_back(
    bit: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.randn(shape).to(dtype)
    before = tensor.clone()
    as_numbers = {torch.float32: torch.int32}.get(dtype, torch.int16)
    flip(tensor, bit)
    changed = tensor.view(as_numbers) ^ before.view(as_numbers)
    bits = 8 * tensor.element_size()
    assert sum(bin(int(n) & (2**bits - 1)).count("1") for n in changed.reshape(-1)) == 1
    flip(tensor, bit)
    assert torch.equal(tensor.view(as_numbers), before.view(as_numbers))


def test_bits_are_counted_as_in_a_float32() -> None:
    full, half = torch.ones(1), torch.ones(1, dtype=torch.bfloat16)
    for tensor in (full, half):
        flip(tensor, 31)
    assert full.item() == half.item() == -1.0


@pytest.mark.parametrize("bit", [23, 24])
def test_a_wrong_root_makes_all_gradients_wrong_by_one_factor(bit: int) -> None:
    weights = torch.randn(4, 3, requires_grad=True)
    (weights**2).sum().backward()
    right = weights.grad.clone()
    weights.grad = None
    loss = (weights**2).sum()
    flip_root(loss, bit)
    loss.backward()
    factors = (weights.grad / right).flatten()
    assert torch.allclose(factors, factors[0].expand(12))
    assert factors[0] in (0.25, 0.5, 2.0, 4.0)


def test_a_wrong_weight_lies_in_a_layer_where_every_text_meets_it() -> None:
    model = torch.nn.ModuleDict(
        {
            "tokens": torch.nn.Embedding(8, 4),
            "blocks": torch.nn.ModuleList([torch.nn.Linear(4, 4)]),
            "head": torch.nn.Linear(4, 8),
        }
    )
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    flip_weight(SimpleNamespace(model=model, parallel=None), 24)
    changed = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
    assert changed == ["blocks.0.weight"]
