import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.core.errors import DataError
from longhaul.data.order import Mixture, Order, Stage, StagedMixture, take_draws
from longhaul.data.permutation import Permutation, WindowedPermutation

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


@given(size=st.integers(1, 2000), width=st.integers(1, 2500), key=KEYS)
@settings(max_examples=50, deadline=None)
def test_a_window_is_read_before_the_next_and_every_element_once(
    size: int, width: int, key: int
) -> None:
    permutation = WindowedPermutation(size, width, key)
    image = permutation(np.arange(size, dtype=np.int64))
    assert np.array_equal(np.sort(image), np.arange(size))
    rank, windows = 0, []
    while rank < size:
        blocks, end = permutation.window_at(rank)
        assert set(image[rank:end].tolist()) == set(blocks)
        windows.append(blocks.start)
        rank = end
    assert sorted(windows) == list(range(0, size, width))


def test_windows_and_what_is_in_them_are_shuffled() -> None:
    permutation = WindowedPermutation(100_000, 1000, 5)
    image = permutation(np.arange(100_000, dtype=np.int64))
    assert np.abs(np.diff(image[:1000])).mean() == pytest.approx(1000 / 3, rel=0.1)
    assert np.abs(np.diff(image[::1000])).mean() == pytest.approx(100_000 / 3, rel=0.3)
    assert not np.array_equal(image % 1000, WindowedPermutation(100_000, 1000, 6)(image) % 1000)


def windowed(window: int | None, counts: tuple[int, ...] = (500, 90)) -> Order:
    names = ("a", "b")
    return Order(7, names, counts, [Stage(0, (3.0, 1.0))], cycle=8, window=window)


def test_a_window_as_wide_as_a_source_changes_nothing() -> None:
    draws = np.arange(1500, dtype=np.int64)
    assert np.array_equal(windowed(None).blocks(draws), windowed(500).blocks(draws))
    assert not np.array_equal(windowed(None).blocks(draws), windowed(50).blocks(draws))


def test_what_is_read_lies_in_the_windows_that_were_announced() -> None:
    order, announced = windowed(40), []
    for draw in range(2000):
        source, epoch, block = order.blocks(np.array([draw], np.int64))[:, 0].tolist()
        if draw % 20 == 0:  # as late as a batch looks again
            announced = list(order.windows_ahead(draw, 2))
            assert [number for number, _ in announced] == [0, 1, 0, 1]
        assert any(number == source and block in blocks for number, blocks in announced), draw
    assert epoch >= 1, "into the next epoch"


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
    stages = [Stage(0, (1.0, 2.0))]
    given = {"names": ["a", "b"], "block_counts": [40, 1500], "stages": stages, "cycle": 30}
    return Order(seed, **(given | changed))  # type: ignore[arg-type]


def test_every_epoch_of_a_source_reads_each_of_its_blocks_once() -> None:
    source, epochs, blocks = order().blocks(np.arange(3 * 40 * 3, dtype=np.int64))
    for epoch in range(3):
        mine = blocks[(source == 0) & (epochs == epoch)]
        assert sorted(mine.tolist()) == list(range(40))


def test_epochs_are_ordered_differently() -> None:
    source, epochs, blocks = order().blocks(np.arange(240, dtype=np.int64))
    first, second = (blocks[(source == 0) & (epochs == epoch)] for epoch in (0, 1))
    assert first.tolist() != second.tolist()


@given(draw=st.integers(0, 10**12), count=st.integers(1, 3000))
@settings(max_examples=30, deadline=None)
def test_a_draw_is_the_same_whether_read_alone_or_in_a_stretch(draw: int, count: int) -> None:
    stretch = order().blocks(np.arange(draw, draw + count, dtype=np.int64))
    last = order().blocks(np.array([draw + count - 1], dtype=np.int64))
    assert stretch[:, -1].tolist() == last[:, 0].tolist()


def test_a_source_keeps_its_own_order_when_another_one_is_added() -> None:
    alone = order(names=["a"], block_counts=[40], stages=[Stage(0, (1.0,))]).blocks(
        np.arange(40, dtype=np.int64)
    )
    source, _, blocks = order().blocks(np.arange(120, dtype=np.int64))
    assert alone[2].tolist() == blocks[source == 0].tolist()


def test_a_source_without_a_whole_block_is_named() -> None:
    with pytest.raises(DataError, match="source b"):
        order(block_counts=[40, 0])


WEIGHTS = st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5]), min_size=3, max_size=3).filter(any)
STAGES = st.lists(st.tuples(st.integers(1, 150), WEIGHTS), min_size=1, max_size=4)


def staged(steps: list[tuple[int, list[float]]]) -> list[Stage]:
    """Stages of these lengths; the last one has no end."""
    begins = itertools.accumulate((length for length, _ in steps[:-1]), initial=0)
    return [Stage(b, tuple(weights)) for b, (_, weights) in zip(begins, steps, strict=True)]


@given(steps=STAGES, cycle=st.integers(3, 40))
@settings(max_examples=100, deadline=None)
def test_every_cycle_of_every_stage_holds_the_shares_of_that_stage(
    steps: list[tuple[int, list[float]]], cycle: int
) -> None:
    stages = staged(steps)
    mixture = StagedMixture(stages, cycle)
    ends = [*(stage.from_draw for stage in stages[1:]), stages[-1].from_draw + 3 * cycle]
    for stage, end in zip(stages, ends, strict=True):
        counts = Mixture(stage.weights, cycle).counts
        assert [count > 0 for count in counts] == [weight > 0 for weight in stage.weights]
        for begin in range(stage.from_draw, end - cycle + 1, cycle):
            source, _ = mixture.locate(np.arange(begin, begin + cycle, dtype=np.int64))
            assert np.bincount(source, minlength=3).tolist() == counts.tolist()


@given(steps=STAGES, cycle=st.integers(3, 40))
@settings(max_examples=40, deadline=None)
def test_across_stages_no_block_comes_twice_in_an_epoch_and_none_is_left_out(
    steps: list[tuple[int, list[float]]], cycle: int
) -> None:
    counts = [7, 30, 200]
    read = Order(5, ["a", "b", "c"], counts, staged(steps), cycle).blocks(
        np.arange(500, dtype=np.int64)
    )
    for source, count in enumerate(counts):
        _, epochs, blocks = read[:, read[0] == source]
        assert np.array_equal(epochs, np.arange(len(epochs)) // count)
        for epoch in range(len(epochs) // count):
            assert sorted(blocks[epochs == epoch].tolist()) == list(range(count))
        assert len(set(zip(epochs.tolist(), blocks.tolist(), strict=True))) == len(epochs)


@given(steps=STAGES, draws=st.lists(st.integers(0, 700) | st.integers(0, 10**12), min_size=1))
@settings(max_examples=60, deadline=None)
def test_with_stages_a_draw_sought_alone_is_the_one_met_on_the_way(
    steps: list[tuple[int, list[float]]], draws: list[int]
) -> None:
    mixture = StagedMixture(staged(steps), 10)
    walked = mixture.locate(np.arange(701, dtype=np.int64))
    asked = np.array(draws, dtype=np.int64)
    together = mixture.locate(asked)
    for at, draw in enumerate(draws):
        alone = mixture.locate(asked[at : at + 1])
        assert (alone[0][0], alone[1][0]) == (together[0][at], together[1][at])
        if draw <= 700:
            assert (alone[0][0], alone[1][0]) == (walked[0][draw], walked[1][draw])


def test_until_a_stage_begins_the_order_is_as_without_it() -> None:
    draws = np.arange(500, dtype=np.int64)
    plain = order().blocks(draws)
    staged_later = order(stages=[Stage(0, (1.0, 2.0)), Stage(200, (0.0, 1.0))]).blocks(draws)
    assert np.array_equal(plain[:, :200], staged_later[:, :200])
    assert (staged_later[0, 200:] == 1).all()


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


def test_the_epoch_is_how_often_the_source_read_most_was_read() -> None:
    order = Order(1, ["short", "long"], [10, 1000], [Stage(0, (1.0, 1.0))], cycle=4)
    assert order.epoch(0) == 0
    assert order.epoch(20) == pytest.approx(1.0)  # half of the draws are the short source's
    assert order.epoch(50) == pytest.approx(2.5)
