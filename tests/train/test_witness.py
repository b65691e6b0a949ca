import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.pieces import Pieces, cut_parts, pieces_of
from longhaul.parallel.layout import Layout
from longhaul.train.witness import _ROW_ON_CPU, _holders, hash_of

FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.mark.parametrize("dtype", FORMATS)
def test_equal_bits_have_one_hash_and_every_single_bit_counts(dtype: torch.dtype) -> None:
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    right = int(hash_of(tensor))
    assert int(hash_of(tensor.clone())) == right
    for place in (0, 17, 34):
        for bit in range(8 * tensor.element_size() - 1):
            wrong = tensor.clone()
            wrong.view(BITS[tensor.element_size()]).view(-1)[place] ^= 1 << bit
            assert int(hash_of(wrong)) != right


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(width=32), min_size=2, max_size=40), st.data())
def test_what_stands_elsewhere_is_something_else(values: list[float], data: st.DataObject) -> None:
    a, b = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=2, max_size=2))
    tensor = torch.tensor(values)
    swapped = tensor.clone()
    swapped[a], swapped[b] = tensor[b].clone(), tensor[a].clone()
    same = torch.equal(tensor.view(torch.int32), swapped.view(torch.int32))
    assert (int(hash_of(tensor)) == int(hash_of(swapped))) == same


def test_zeros_of_both_signs_and_all_nans_are_told_apart() -> None:
    assert int(hash_of(torch.tensor([0.0]))) != int(hash_of(torch.tensor([-0.0])))
    nan = torch.tensor([float("nan")])
    assert int(hash_of(nan)) == int(hash_of(nan.clone()))
    assert int(hash_of(torch.empty(0))) == 0


def test_a_tensor_that_is_hashed_row_by_row_is_hashed_whole() -> None:
    row = _ROW_ON_CPU
    tensor = torch.zeros(2 * row + 3)
    right = {int(hash_of(tensor))}
    for place in (0, row - 1, row, 2 * row + 2):
        wrong = tensor.clone()
        wrong[place] = 1.0
        right.add(int(hash_of(wrong)))
    assert len(right) == 5


def held(layout: Layout, rank: int, shards: int, cut: bool) -> Pieces:
    holder = rank % (layout.shard * layout.tensor)
    how = cut_parts((8,), layout.tensor) if cut else None
    by_holder = pieces_of((8, 4), how, shards, layout.tensor) * (layout.shard // shards)
    return Pieces((8, 4), tuple(tuple(pieces) for pieces in by_holder), holder)


def test_who_holds_the_same_part_of_a_weight_follows_from_its_pieces() -> None:
    layout = Layout(replicate=2, shard=2, tensor=2)
    # Cut by nothing, by shards, by tensor ranks, by both: ranks of one name hold the same.
    for shards, cut, size in ((1, False, 8), (2, False, 4), (1, True, 4), (2, True, 2)):
        groups: dict[str, list[int]] = {}
        for rank in range(8):
            name, count = _holders(held(layout, rank, shards, cut), layout, rank)
            groups.setdefault(name, []).append(rank)
            assert count == size
        assert {len(ranks) for ranks in groups.values()} == {size}
    name, count = _holders(held(Layout(shard=2), 1, 2, False), Layout(shard=2), 1)
    assert count == 1
