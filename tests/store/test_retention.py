from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from longhaul.logbook.ledger import Health
from longhaul.store.catalogue import Checkpoint
from longhaul.store.retention import superseded, to_remove


def entry(step: int, damaged: bool = False) -> Checkpoint:
    return Checkpoint(
        step=step,
        path=Path(f"step-{step}"),
        manifest_sha256="",
        time=0.0,
        size_bytes=0,
        damage="torn" if damaged else "",
    )


def kept(healths: dict[int, Health], keep_last: int = 1, keep_every: int = 0) -> list[int]:
    checkpoints = [entry(step) for step in healths]
    gone = to_remove(checkpoints, healths, keep_last=keep_last, keep_every=keep_every)
    return sorted(healths.keys() - {checkpoint.step for checkpoint in gone})


def test_the_newest_and_the_multiples_stay() -> None:
    healths: dict[int, Health] = dict.fromkeys(range(10, 130, 10), "verified")
    assert kept(healths, keep_last=2, keep_every=50) == [50, 100, 110, 120]


def test_the_newest_verified_and_the_newest_good_stay_behind_newer_ones() -> None:
    healths: dict[int, Health] = {
        1: "good", 2: "good", 3: "verified", 4: "verified", 5: "committed", 6: "committed",
    }  # fmt: skip
    assert kept(healths) == [2, 4, 6]


def test_a_poisoned_one_neither_stays_nor_takes_a_place() -> None:
    assert kept({1: "good", 2: "verified", 4: "poisoned", 8: "poisoned"}, keep_every=4) == [1, 2]


def test_the_last_one_of_all_is_not_thrown_away() -> None:
    assert kept({1: "poisoned", 2: "poisoned"}) == [2]


@given(
    st.dictionaries(
        st.integers(0, 300),
        st.tuples(
            st.sampled_from(["committed", "verified", "good", "poisoned"]),
            st.sampled_from([False, False, False, True]),
        ),
        max_size=20,
    ),
    st.integers(1, 5),
    st.sampled_from([0, 1, 7, 50]),
)
def test_what_a_run_needs_next_is_never_removed(
    states: dict[int, tuple[Health, bool]], keep_last: int, keep_every: int
) -> None:
    checkpoints = [entry(step, damaged) for step, (_, damaged) in states.items()]
    health = {step: word for step, (word, _) in states.items()}
    gone = to_remove(checkpoints, health, keep_last=keep_last, keep_every=keep_every)
    left = states.keys() - {checkpoint.step for checkpoint in gone}
    sound = {
        step: word for step, (word, damaged) in states.items() if word != "poisoned" and not damaged
    }
    assert [checkpoint.step for checkpoint in gone] == sorted(states.keys() - left)
    assert set(sorted(sound)[-keep_last:]) <= left
    for kind in (("verified", "good"), ("good",), ("committed", "verified", "good")):
        assert {max((step for step in sound if sound[step] in kind), default=-1)} <= left | {-1}
    assert bool(left) == bool(states)
    # Nothing is kept without a reason.
    assert len(left) <= keep_last + 2 + sum(
        bool(keep_every) and step % keep_every == 0 for step in sound
    )


def test_of_two_states_of_a_step_the_older_one_is_superseded() -> None:
    old, new, other = (
        replace(entry(step), time=time) for step, time in ((10, 1.0), (10, 2.0), (20, 0.5))
    )
    assert superseded([new, other, old]) == [old]
    assert superseded([]) == []
