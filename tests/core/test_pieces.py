import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.pieces import Cut, Pieces, cut_evenly, cut_parts, pieces_of


def filled(shape: tuple[int, ...], holders: Pieces) -> np.ndarray:
    """How often each element is held, and every holder's own tensor is filled once."""
    count = np.zeros(shape, dtype=int)
    for number, pieces in enumerate(holders.by_holder):
        own = np.zeros(holders.local_shape(number), dtype=int)
        for piece in pieces:
            there = tuple(slice(o, o + s) for o, s in zip(piece.offset, piece.size, strict=True))
            here = tuple(slice(o, o + s) for o, s in zip(piece.local, piece.size, strict=True))
            count[there] += 1
            own[here] += 1
        assert (own == 1).all()
    return count


@settings(max_examples=60)
@given(
    parts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    columns=st.integers(1, 5),
    shards=st.integers(1, 4),
    tensors=st.integers(1, 4),
    axis=st.integers(0, 1),
)
def test_the_pieces_of_all_holders_tile_the_whole(
    parts: list[int], columns: int, shards: int, tensors: int, axis: int
) -> None:
    shape = (sum(parts), columns) if axis == 0 else (columns, sum(parts))
    by_holder = pieces_of(shape, cut_parts(parts, tensors, axis), shards, tensors)
    count = filled(shape, Pieces(shape, tuple(map(tuple, by_holder)), holder=0))
    assert (count == 1).all()


def test_each_tensor_rank_holds_its_share_of_every_fused_map() -> None:
    cut = cut_parts((4, 2, 2), 2)
    assert cut == Cut(0, (((0, 2), (4, 1), (6, 1)), ((2, 2), (5, 1), (7, 1))))


def test_what_no_tensor_rank_cuts_all_of_them_hold() -> None:
    by_holder = pieces_of((5,), None, 2, 2)
    assert by_holder[0] == by_holder[1]
    assert by_holder[2] == by_holder[3] != by_holder[0]


def test_stretches_are_those_of_torch() -> None:
    assert cut_evenly(5, 4) == ((0, 2), (2, 2), (4, 1), (5, 0))


def test_a_holder_of_nothing_has_an_empty_tensor() -> None:
    pieces = Pieces((3, 7), tuple(map(tuple, pieces_of((3, 7), None, 4, 1))), holder=3)
    assert pieces.mine == ()
    assert pieces.local_shape(3) == (0, 7)
