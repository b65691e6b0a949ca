from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from longhaul.logbook.ledger import Health
from longhaul.store.catalogue import Checkpoint
from longhaul.store.retention import to_make_room


def entry(step: int, size: int = 10, damaged: bool = False) -> Checkpoint:
    return Checkpoint(
        step=step,
        path=Path(f"step-{step}"),
        manifest_sha256="" if damaged else f"hash of {step}",
        time=0.0,
        size_bytes=0 if damaged else size,
        damage="torn" if damaged else "",
    )


def gone(healths: dict[int, Health], needed: int, *elsewhere: int) -> list[int]:
    held = [f"hash of {step}" for step in elsewhere]
    return [c.step for c in to_make_room([entry(s) for s in healths], healths, held, needed)]


def test_what_nobody_would_go_back_to_goes_first_then_the_oldest() -> None:
    healths: dict[int, Health] = {1: "good", 2: "verified", 3: "poisoned", 4: "verified"}
    assert gone(healths, 10) == [3]
    assert gone(healths, 11) == [3, 2], "1 is the newest good one"
    assert gone(healths, 21) == [], "4 is the newest verified one"


def test_what_a_tier_holds_may_go_from_here_and_the_oldest_first() -> None:
    healths: dict[int, Health] = {1: "good", 4: "verified"}
    assert gone(healths, 1) == []
    assert gone(healths, 1, 1, 4) == [1]
    assert gone(healths, 20, 1, 4) == [1, 4]
    assert gone(healths, 20, 4) == []


def test_the_newest_goes_last_wherever_else_it_is() -> None:
    healths: dict[int, Health] = {1: "verified", 2: "verified", 3: "good"}
    assert gone(healths, 1, 3) == [1]
    assert gone(healths, 20, 3) == [1, 2]
    assert gone(healths, 21, 3) == [1, 2, 3]


def test_nothing_is_given_up_in_vain() -> None:
    assert gone({1: "verified", 2: "verified", 3: "verified"}, 1000, 1, 2, 3) == []
    assert gone({}, 1) == []


def test_the_only_ones_left_are_for_a_person_to_throw_away() -> None:
    assert gone({1: "poisoned", 2: "poisoned"}, 1) == []


@given(
    st.dictionaries(
        st.integers(0, 50),
        st.tuples(
            st.sampled_from(["committed", "verified", "good", "poisoned"]),
            st.sampled_from([False, False, True]),
            st.booleans(),
            st.integers(1, 30),
        ),
        max_size=12,
    ),
    st.integers(1, 100),
)
def test_there_is_always_something_to_go_on_from(
    states: dict[int, tuple[Health, bool, bool, int]], needed: int
) -> None:
    entries = [entry(step, size, torn) for step, (_, torn, _, size) in states.items()]
    health = {step: word for step, (word, _, _, _) in states.items()}
    held = {f"hash of {step}" for step, (_, _, elsewhere, _) in states.items() if elsewhere}
    removed = to_make_room(entries, health, held, needed)
    assert not removed or sum(c.size_bytes for c in removed) >= needed
    left = [c for c in entries if c not in removed]
    for kinds in (("verified", "good"), ("good",), ("committed", "verified", "good")):
        before = [c for c in entries if health[c.step] in kinds and not c.damage]
        if before:
            newest = max(before, key=lambda c: c.step)
            assert newest in left or newest.manifest_sha256 in held
