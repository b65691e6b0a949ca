import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data.order import Mixture, Order, Permutation, take_draws

KEYS = st.integers(0, 2**63 - 1)


@given(size=st.integers(1, 3000), key=KEYS)
@settings(max_examples=50, deadline=None)
def test_a_permutation_visits_every_element_once(size: int, key: int) -> None:
    image = Permutation(size, key)(np.arange(size, dtype=np.int64))
    assert np.array_equal(np.sort(image), np.arange(size))


def test_a_permutation_is_sought_anywhere_in_a_domain_too_large_for_a_table() -> None:
    permutation = Permutation(10**15, 7)
    places = np.array([0, 1, 10**15 - 1], dtype=np.int64)
    together = permutation(places)
    assert len(set(together.tolist())) == 3
    assert all(permutation(places[i : i + 1])[0] == together[i] for i in range(3))


def test_two_keys_order_differently_and_neither_keeps_neighbours_together() -> None:
    size = 10_000
    first, second = (Permutation(size, key)(np.arange(size, dtype=np.int64)) for key in (1, 2))
    assert (first == second).mean() < 0.01
    assert np.abs(np.diff(first)).mean() == pytest.approx(size / 3, rel=0.05)


@given(
    weights=st.lists(st.floats(0.001, 1000), min_size=1, max_size=6),
    cycle=st.integers(6, 500),
    turn=st.integers(0, 10**9),
)
@settings(max_examples=50, deadline=None)
def test_every_cycle_holds_each_source_s_share_and_no_draw_of_a_source_twice(
    weights: list[float], cycle: int, turn: int
) -> None:
    mixture = Mixture(weights, cycle)
    assert mixture.counts.sum() == cycle
    source, index = mixture.locate(np.arange(turn * cycle, (turn + 1) * cycle, dtype=np.int64))
    for number, count in enumerate(mixture.counts.tolist()):
        mine = np.sort(index[source == number])
        assert np.array_equal(mine, np.arange(turn * count, (turn + 1) * count))
        exact = weights[number] / sum(weights) * cycle
        assert count == 1 or abs(count - exact) <= len(weights)


def test_any_stretch_of_draws_has_nearly_the_asked_mixture() -> None:
    source, _ = Mixture([3, 1], 4096).locate(np.arange(100, 200, dtype=np.int64))
    assert (source == 0).sum() == pytest.approx(75, abs=2)


def test_more_sources_than_a_cycle_has_draws_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"order\.cycle"):
        Mixture([1, 1, 1], 2)


def order(seed: int = 1, **changed: object) -> Order:
    given = {"names": ["a", "b"], "block_counts": [40, 1500], "weights": [1, 2], "cycle": 30}
    return Order(seed, **(given | changed))  # type: ignore[arg-type]


def test_every_epoch_of_a_source_reads_each_of_its_blocks_once() -> None:
    blocks = order().blocks(np.arange(3 * 40 * 3, dtype=np.int64))
    for epoch in range(3):
        mine = blocks.block[(blocks.source == 0) & (blocks.epoch == epoch)]
        assert sorted(mine.tolist()) == list(range(40))


def test_epochs_are_ordered_differently() -> None:
    blocks = order().blocks(np.arange(240, dtype=np.int64))
    first, second = (blocks.block[(blocks.source == 0) & (blocks.epoch == e)] for e in (0, 1))
    assert first.tolist() != second.tolist()


@given(draw=st.integers(0, 10**12), count=st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_a_draw_is_the_same_whether_read_alone_or_in_a_stretch(draw: int, count: int) -> None:
    stretch = order().blocks(np.arange(draw, draw + count, dtype=np.int64))
    last = order().blocks(np.array([draw + count - 1], dtype=np.int64))
    assert stretch.block[-1] == last.block[0]
    assert stretch.epoch[-1] == last.epoch[0]
    assert stretch.source[-1] == last.source[0]


def test_a_source_keeps_its_own_order_when_another_one_is_added() -> None:
    alone = order(names=["a"], block_counts=[40], weights=[1]).blocks(np.arange(40, dtype=np.int64))
    both = order().blocks(np.arange(120, dtype=np.int64))
    assert alone.block.tolist() == both.block[both.source == 0].tolist()


def test_a_source_without_a_whole_block_is_named() -> None:
    with pytest.raises(DataError, match="source b"):
        order(block_counts=[40, 0])


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=5)


@given(draw=st.integers(0, 80), count=st.integers(1, 40), ranges=RANGES)
@settings(max_examples=200, deadline=None)
def test_a_skip_is_never_drawn_and_nothing_else_is_lost(
    draw: int, count: int, ranges: list[tuple[int, int]]
) -> None:
    skipped = {d for begin, length in ranges for d in range(begin, begin + length)}
    edges = sorted(skipped)
    apart = [
        (group[0], group[-1] + 1)
        for _, items in itertools.groupby(enumerate(edges), lambda pair: pair[1] - pair[0])
        for group in [[value for _, value in items]]
    ]
    draws, following = take_draws(draw, count, apart)
    expected = list(itertools.islice((d for d in itertools.count(draw) if d not in skipped), count))
    assert draws.tolist() == expected
    assert following == expected[-1] + 1
