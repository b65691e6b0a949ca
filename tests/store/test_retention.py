from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from longhaul.logbook.ledger import CheckpointHealth, Health
from longhaul.store.catalogue import Checkpoint
from longhaul.store.retention import may_begin_anew, superseded, to_remove


def entry(step: int, damaged: bool = False) -> Checkpoint:
    return Checkpoint(
        step=step,
        path=Path(f"step-{step}"),
        manifest_sha256="",
        time=0.0,
        size_bytes=0,
        damage="torn" if damaged else "",
    )


def kept(
    healths: dict[int, Health],
    keep_last: int = 1,
    keep_every: int = 0,
    oldest_snapshot: int | None = None,
) -> list[int]:
    checkpoints = [entry(step) for step in healths]
    gone = to_remove(
        checkpoints,
        healths,
        keep_last=keep_last,
        keep_every=keep_every,
        oldest_snapshot=oldest_snapshot,
    )
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


def test_one_stays_that_no_rollback_to_a_snapshot_can_poison() -> None:
    healths: dict[int, Health] = dict.fromkeys((10, 20, 30, 40), "verified")
    assert kept(healths, oldest_snapshot=25) == [20, 40]
    assert kept(healths, oldest_snapshot=30) == [30, 40]
    assert kept(healths, oldest_snapshot=5) == [10, 40], "the nearest to it there is"
    assert kept({10: "poisoned", 20: "committed", 30: "good"}, oldest_snapshot=25) == [30]


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


class Timeline:
    """A run as far as its states are concerned: what lies on disk, in memory, in the ledger."""

    def __init__(self, every: int, room: int, keep_last: int) -> None:
        self.every, self.room, self.keep_last = every, room, keep_last
        self.step, self.written = 0, 0
        self.ring = [0]
        self.disk: dict[int, str] = {}
        self.ledger: dict[int, CheckpointHealth] = {}
        self.gone_back_to: int | None = None

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.step += 1
            if self.step % self.every == 0:
                self.ring = [*self.ring, self.step][-self.room :]

    def save(self) -> None:
        self.written += 1
        self.disk[self.step] = f"manifest {self.written}"
        self.ledger[self.step] = CheckpointHealth("verified", self.disk[self.step])
        entries = [entry(step) for step in self.disk]
        oldest = self.ring[0] if self.ring else None
        for gone in to_remove(
            entries, self.health(), keep_last=self.keep_last, keep_every=0, oldest_snapshot=oldest
        ):
            del self.disk[gone.step]

    def health(self) -> dict[int, Health]:
        return {step: self.ledger[step].health for step in self.disk}

    def sound(self) -> list[int]:
        return sorted(step for step, word in self.health().items() if word != "poisoned")

    def roll_back(self, choice: int) -> None:
        states = sorted({*self.ring, *self.sound()})
        states = [step for step in states if step < self.step]
        if not states:
            return
        to = states[choice % len(states)]
        for step in self.sound():
            if step > to:
                self.ledger[step] = CheckpointHealth("poisoned", self.disk[step])
        self.ring = [step for step in self.ring if step <= to]
        self.gone_back_to = self.step = to

    def kill(self) -> None:
        assert self.can_go_on()
        self.step = max(self.sound(), default=0)
        self.ring = [self.step]

    def can_go_on(self) -> bool:
        return not self.disk or bool(self.sound()) or may_begin_anew(self.ledger, self.gone_back_to)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("train"), st.integers(1, 30)),
            st.tuples(st.just("save"), st.just(0)),
            st.tuples(st.just("roll_back"), st.integers(0, 9)),
            st.tuples(st.just("kill"), st.just(0)),
        ),
        max_size=40,
    ),
    st.sampled_from([3, 5, 12]),
    st.integers(2, 8),
    st.integers(1, 2),
)
def test_whatever_happens_a_killed_run_can_go_on(
    happened: list[tuple[str, int]], every: int, room: int, keep_last: int
) -> None:
    """Saves, snapshots, rollbacks and kills in any order; a kill is tried after each of them."""
    story = Timeline(every, room, keep_last)
    for name, value in happened:
        getattr(story, name)(*([value] if name in ("train", "roll_back") else []))
        assert story.can_go_on(), name
        assert not story.gone_back_to or all(step <= story.step for step in story.sound()), (
            "nothing that was gone back behind is gone on from"
        )


def test_a_sound_checkpoint_that_is_gone_is_no_reason_to_begin_anew() -> None:
    verified, poisoned = CheckpointHealth("verified", "a"), CheckpointHealth("poisoned", "b")
    assert may_begin_anew({10: poisoned, 30: verified}, 5)
    assert may_begin_anew({10: poisoned, 30: verified}, 20)
    assert not may_begin_anew({10: verified, 30: poisoned}, 20)
    assert not may_begin_anew({10: poisoned}, None)
