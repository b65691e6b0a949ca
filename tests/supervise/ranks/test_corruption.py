import math

from hypothesis import given
from hypothesis import strategies as st

from longhaul.supervise.ranks.corruption import (
    Comparison,
    Verdict,
    judge_hashes,
    judge_slots,
    judge_together,
    next_pair,
)


def pair(step: int, first: int, second: int, same: bool = True) -> Comparison:
    return Comparison(step, first, second, (2.5, 1.0), (2.5, 1.0 if same else 1.5))


def test_the_replica_that_differs_from_the_majority_is_the_odd_one() -> None:
    verdict = judge_hashes(40, {0: "a", 1: "a", 2: "b", 3: "a"})
    assert (verdict.kind, verdict.ranks, verdict.sound_step) == ("odd", (2,), None)
    assert verdict.reason == (
        "step 40: the weights of rank 2 differ from those of the other replicas"
    )


def test_two_replicas_cannot_tell() -> None:
    verdict = judge_hashes(40, {0: "a", 1: "b"})
    assert (verdict.kind, verdict.ranks) == ("undecided", (0, 1))
    assert judge_hashes(40, {0: "a", 1: "a", 2: "b", 3: "b"}).kind == "undecided"


def test_replicas_that_agree_make_this_step_one_to_go_back_to() -> None:
    assert judge_hashes(40, {0: "a", 1: "a"}) == Verdict(
        "sound", "step 40: all replicas hold the same weights", (), 40
    )
    assert judge_hashes(40, {0: "a"}).kind == "sound"


@given(st.integers(3, 40), st.data())
def test_any_minority_is_named_exactly(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=(count - 1) // 2))
    verdict = judge_hashes(
        1, {rank: f"bad{rank}" if rank in bad else "ok" for rank in range(count)}
    )
    assert set(verdict.ranks) == bad
    assert verdict.kind == ("odd" if bad else "sound")


def test_a_pair_that_differs_cannot_tell_and_a_third_can() -> None:
    seen = [pair(10, 0, 1), pair(20, 1, 2), pair(30, 2, 3, same=False)]
    verdict = judge_slots(seen)
    assert (verdict.kind, verdict.ranks, verdict.sound_step) == ("undecided", (2, 3), 20)
    assert "two cannot tell which is wrong" in verdict.reason
    decided = judge_slots([*seen, pair(30, 0, 2), pair(30, 0, 3, same=False)])
    assert (decided.kind, decided.ranks, decided.sound_step) == ("odd", (3,), 20)
    assert decided.reason == (
        "step 30: rank 3 computes other numbers than ranks 0, 2 from the same data"
    )


def test_with_two_ranks_nobody_is_accused() -> None:
    verdict = judge_slots([pair(1, 0, 1, same=False), pair(2, 0, 1), pair(3, 0, 1, same=False)])
    assert (verdict.kind, verdict.ranks) == ("undecided", (0, 1))


def test_a_fault_that_comes_and_goes_is_named_by_its_partners_over_time() -> None:
    seen = [
        pair(10, 0, 1, same=False), pair(20, 1, 2), pair(30, 2, 3), pair(40, 1, 3, same=False)
    ]  # fmt: skip
    verdict = judge_slots(seen)
    assert (verdict.kind, verdict.ranks, verdict.sound_step) == ("odd", (1,), None)


def test_two_faulty_ranks_are_not_blamed_on_one() -> None:
    verdict = judge_slots([pair(10, 0, 1, same=False), pair(20, 2, 3, same=False)])
    assert (verdict.kind, verdict.ranks) == ("undecided", (0, 1, 2, 3))


def test_equality_is_of_bits_and_nan_is_equal_to_nan() -> None:
    assert Comparison(1, 0, 1, (math.nan, math.inf), (math.nan, math.inf)).same()
    assert not Comparison(1, 0, 1, (math.nan,), (1.0,)).same(tolerance=0.1)
    assert not Comparison(1, 0, 1, (1.0,), (1.0 + 1e-15,)).same()
    assert Comparison(1, 0, 1, (1.0,), (1.0 + 1e-15,)).same(tolerance=1e-12)
    assert not Comparison(1, 0, 1, (math.inf,), (-math.inf,)).same(tolerance=0.5)
    assert not Comparison(1, 0, 1, (1.0, 2.0), (1.0,)).same()


@given(st.integers(2, 12))
def test_in_time_every_rank_computes_with_every_other(count: int) -> None:
    ranks = [10 * rank for rank in range(count)]
    pairs = [next_pair(turn, ranks) for turn in range(count * (count - 1))]
    assert all(first != second for first, second in pairs)
    assert len(set(pairs)) == count * (count - 1)
    assert {rank for first_round in pairs[:count] for rank in first_round} == set(ranks)


@given(st.integers(3, 10), st.data())
def test_a_rank_that_is_always_wrong_is_found_and_no_other_is_blamed(
    count: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, count - 1))
    seen = []
    for turn in range(count * (count - 1)):
        first, second = next_pair(turn, range(count))
        seen.append(pair(turn, first, second, same=bad not in (first, second)))
        verdict = judge_slots(seen)
        assert verdict.kind != "odd" or verdict.ranks == (bad,)
    assert verdict.kind == "odd"


def test_nothing_compared_is_nothing_found() -> None:
    assert judge_slots([]).sound_step is None


@given(st.integers(3, 12), st.data())
def test_neighbours_compared_in_a_ring_name_the_odd_one(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    ring = [next_pair(turn, range(count)) for turn in range(count)]
    verdict = judge_slots([pair(7, a, b, same=bad not in (a, b)) for a, b in ring])
    assert (verdict.kind, verdict.ranks) == ("odd", (bad,))


def test_a_group_that_names_somebody_speaks_for_those_that_cannot() -> None:
    sound = judge_hashes(9, {0: "a", 1: "a"})
    odd = judge_hashes(9, {0: "a", 1: "a", 2: "b"})
    two = judge_hashes(9, {4: "a", 5: "b"})
    assert judge_together([sound, two, odd], 9).ranks == (2,)
    assert judge_together([sound, two, odd], 9).kind == "odd"
    assert judge_together([sound, two], 9).kind == "undecided"
    assert judge_together([two, judge_hashes(9, {6: "a", 7: "b"})], 9).ranks == (4, 5, 6, 7)
    assert judge_together([sound, sound], 9).sound_step == 9
    assert judge_together([], 9).kind == "sound"
