import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.supervise.ranks.stragglers import StragglerWatch


def watched(ranks: int, steps: int, factor=lambda step, rank: 1.0, jitter=0.02, seed=0, peers=None):
    """(step at which it was told, straggler) of a world whose ranks jitter."""
    chance, watch, told = random.Random(seed), StragglerWatch(peers or [0] * ranks), []
    for step in range(1, steps + 1):
        seconds = [factor(step, rank) * math.exp(chance.gauss(0, jitter)) for rank in range(ranks)]
        told += [(step, straggler) for straggler in watch.observe(step, seconds)]
    return told


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.sampled_from([2, 3, 4, 8, 33]), seed=st.integers(0, 10**6),
    onset=st.integers(1, 150), jitter=st.sampled_from([0.0, 0.01, 0.05, 0.1]),
)  # fmt: skip
def test_a_rank_that_is_20_percent_slower_is_named_within_100_steps(
    ranks: int, seed: int, onset: int, jitter: float
) -> None:
    bad = seed % ranks
    told = watched(
        ranks, onset + 100, lambda step, rank: 1.2 if rank == bad and step >= onset else 1.0,
        jitter, seed,
    )  # fmt: skip
    (named,) = told
    assert onset < named[0] <= onset + 100
    assert named[1].rank == bad
    assert named[1].slower == pytest.approx(0.2, abs=0.1)


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.sampled_from([2, 4, 16]), seed=st.integers(0, 10**6),
    jitter=st.sampled_from([0.01, 0.1, 0.3, 0.8]),
)  # fmt: skip
def test_jitter_names_nobody(ranks: int, seed: int, jitter: float) -> None:
    assert watched(ranks, 400, jitter=jitter, seed=seed) == []


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nor_do_rare_long_steps_of_single_ranks(seed: int) -> None:
    chance = random.Random(seed)
    assert watched(8, 400, lambda *_: 10.0 if chance.random() < 0.1 else 1.0, seed=seed) == []


def test_a_stretch_of_thirty_slow_steps_is_no_straggler() -> None:
    told = watched(4, 400, lambda step, rank: 2.0 if rank == 1 and 100 <= step < 130 else 1.0)
    assert told == []


def test_all_ranks_slower_at_once_is_nobodys_fault() -> None:
    assert watched(4, 400, lambda step, _: 2.0 if step > 200 else 1.0) == []


def test_the_price_is_what_the_others_wait() -> None:
    ((_, straggler),) = watched(4, 200, lambda _, rank: (1.0, 1.05, 1.5, 1.0)[rank], jitter=0.0)
    assert straggler.rank == 2
    assert straggler.lost_s == pytest.approx(0.45)
    assert straggler.lost_share == pytest.approx(0.3)
    assert "rank 2 computes 50% slower than its peers since step 1" in straggler.sentence
    assert "every step waits 0.45 s for it, 30% of" in straggler.sentence


def test_two_of_five_are_named_worst_first_and_once() -> None:
    told = watched(5, 400, lambda _, rank: {1: 1.2, 3: 1.6}.get(rank, 1.0))
    assert [straggler.rank for _, straggler in told] == [3, 1]


def test_one_that_recovers_may_be_named_again() -> None:
    told = watched(
        4, 600, lambda step, rank: 1.3 if rank == 2 and (step < 150 or step > 400) else 1.0
    )
    assert [straggler.rank for _, straggler in told] == [2, 2]


def test_one_that_stays_near_the_line_is_named_once() -> None:
    """It has not recovered: 13 % slower, then 8 %, then 13 % again."""
    told = watched(
        4, 900, lambda step, rank: (1.08 if 200 <= step < 550 else 1.13) if rank == 2 else 1.0,
        jitter=0.005,
    )  # fmt: skip
    assert [straggler.rank for _, straggler in told] == [2]


def test_stages_of_a_pipeline_are_not_compared_with_each_other() -> None:
    heavy = [1.0, 1.0, 1.6, 1.6]
    assert watched(4, 200, lambda _, rank: heavy[rank], peers=[0, 0, 1, 1]) == []
    heavy[3] = 2.0
    ((_, straggler),) = watched(4, 200, lambda _, rank: heavy[rank], peers=[0, 0, 1, 1])
    assert straggler.rank == 3
    assert straggler.slower == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_is_left_out(bad: float) -> None:
    watch = StragglerWatch([0, 0])
    for step in range(300):
        assert watch.observe(step, [1.0, bad if step % 2 else 1.0]) == ()


def test_one_rank_is_never_named() -> None:
    alone = StragglerWatch([0])
    assert all(alone.observe(step, [1.0]) == () for step in range(300))
