import math

from hypothesis import given
from hypothesis import strategies as st

from longhaul.supervise.ranks.corruption import Verdict, agree, judge, judge_hashes, judge_slots


def computed(norms: list[float]) -> dict[int, tuple[float, ...]]:
    return {rank: (2.5, norm) for rank, norm in enumerate(norms)}


def test_the_replica_that_differs_from_the_majority_is_the_odd_one() -> None:
    verdict = judge_hashes(40, {0: "a", 1: "a", 2: "b", 3: "a"})
    assert (verdict.kind, verdict.ranks) == ("odd", (2,))
    assert verdict.reason == (
        "step 40: the weights of rank 2 differ from those of the other replicas"
    )


def test_two_replicas_cannot_tell() -> None:
    verdict = judge_hashes(40, {0: "a", 1: "b"})
    assert (verdict.kind, verdict.ranks) == ("undecided", (0, 1))
    assert judge_hashes(40, {0: "a", 1: "a", 2: "b", 3: "b"}).kind == "undecided"


def test_replicas_that_agree_are_sound() -> None:
    assert judge_hashes(40, {0: "a", 1: "a"}) == Verdict(
        "sound", "step 40: all replicas hold the same weights"
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
    verdict = judge_slots(30, computed([1.0, 1.5]))
    assert (verdict.kind, verdict.ranks) == ("undecided", (0, 1))
    assert "two cannot tell which is wrong" in verdict.reason
    decided = judge_slots(30, computed([1.0, 1.0, 1.5]))
    assert (decided.kind, decided.ranks) == ("odd", (2,))
    assert decided.reason == (
        "step 30: rank 2 computes other numbers than ranks 0, 1 from the same data"
    )


def test_two_faulty_ranks_are_not_blamed_on_one() -> None:
    verdict = judge_slots(10, computed([1.0, 1.5, 1.0, 2.5, 1.0]))
    assert (verdict.kind, verdict.ranks) == ("undecided", (0, 1, 2, 3, 4))
    assert judge_slots(10, computed([1.0, 1.0, 1.5, 2.5])).kind == "undecided"


def test_what_all_agreed_on_before_is_where_one_can_go_back_to() -> None:
    given = [{"data": (2.5, norm)} for norm in (1.0, 1.0, 1.5)]
    verdict = judge(30, "slot", given, sound_step=20)
    assert (verdict.ranks, verdict.sound_step) == ((2,), 20)
    assert judge(30, "slot", given[:1]).kind == "sound", "compared with nobody"


def test_equality_is_of_bits_and_nan_is_equal_to_nan() -> None:
    assert agree((math.nan, math.inf), (math.nan, math.inf))
    assert not agree((math.nan,), (1.0,), tolerance=0.1)
    assert not agree((1.0,), (1.0 + 1e-15,))
    assert agree((1.0,), (1.0 + 1e-15,), tolerance=1e-12)
    assert not agree((math.inf,), (-math.inf,), tolerance=0.5)
    assert not agree((1.0, 2.0), (1.0,))


@given(st.integers(3, 12), st.data())
def test_neighbours_compared_in_a_ring_name_the_odd_one(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, count - 1))
    verdict = judge_slots(7, computed([1.5 if rank == bad else 1.0 for rank in range(count)]))
    assert (verdict.kind, verdict.ranks) == ("odd", (bad,))


def test_a_group_that_names_somebody_speaks_for_those_that_cannot() -> None:
    def judged(*groups: str) -> Verdict:
        """Each group is of ranks of its own, with a letter for the hash of each."""
        named = ((str(group), value) for group, values in enumerate(groups) for value in values)
        return judge(9, "weights", [{group: value} for group, value in named])

    verdict = judged("aa", "ab", "aab")
    assert (verdict.kind, verdict.ranks) == ("odd", (6,))
    assert judged("aa", "ab").kind == "undecided"
    assert judged("ab", "ab").ranks == (0, 1, 2, 3)
    assert judged("aa", "aa").kind == judged().kind == "sound"
