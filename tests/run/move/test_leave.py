"""A run leaves: in which order, and what keeps it."""

from contextlib import suppress

import pytest

from longhaul.core.clocks import RealClock
from longhaul.core.errors import LonghaulError, NeedsPerson, UsageError
from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.logbook.lease import LeaseHeld, acquire, newest_holder
from longhaul.logbook.moves import RunMoved, move_of
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_history import read_run_history
from longhaul.run.move.leave import cancel
from longhaul.store.run_offer import offers, take
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import StoreError


def cut_before(files, wanted: str) -> None:
    """Let the store fail when a file whose name has this in it is to be written."""
    send = files._send

    def cut(pieces, source, path, file) -> None:
        if wanted in path:
            raise StoreError(f"cut at {path}")
        send(pieces, source, path, file)

    files._send = cut


def test_the_newest_sound_checkpoint_goes_with_the_log_and_an_offer(pair) -> None:
    pair.leave("a", "b")
    (offer,) = offers(pair.files("b"))
    assert (offer.step, offer.source, offer.destination) == (20, "a", "b")
    assert move_of(pair.folder("a")).state == "away"
    assert newest_holder(pair.folder("a")).released is not None
    assert "step 30 was reached; 10 steps are made again there" in pair.said
    told = [r for r in read_journal(pair.folder("a")) if isinstance(r, Event)][-2:]
    assert [event.kind for event in told] == [EventKind.ATTEMPT_ENDED, EventKind.MOVED]
    assert told[0].data["reason"] == "moved from a to b: cheaper"


def test_a_damaged_checkpoint_gives_way_to_an_older_one(pair) -> None:
    path = pair.folder("a").checkpoints / "step-20" / "weights.bin"
    path.write_bytes(b"?" + path.read_bytes()[1:])
    pair.leave("a", "b")
    assert offers(pair.files("b"))[0].step == 10
    assert any("trying the one before it" in line for line in pair.said)


def test_a_run_that_has_saved_nothing_stays(pair) -> None:
    for path in pair.folder("a").checkpoints.iterdir():
        path.rename(pair.path / path.name)
    with pytest.raises(UsageError, match="no checkpoint that could be moved"):
        pair.leave("a", "b")
    assert move_of(pair.folder("a")) is None


def test_a_live_run_is_not_moved(pair) -> None:
    with (
        acquire(pair.folder("a"), RealClock()).keep(),
        pytest.raises(LeaseHeld, match="is being trained by"),
    ):
        pair.leave("a", "b")
    assert move_of(pair.folder("a")) is None
    assert offers(pair.files("b")) == []


@pytest.mark.parametrize(
    ("cut", "state"),
    [("weights.bin", None), ("manifest.json", None), ("book/", "leaving"), ("moves/", "leaving")],
)
def test_cut_off_anywhere_it_goes_on(pair, cut: str, state: str | None) -> None:
    files = pair.files("b")
    cut_before(files, cut)
    with pytest.raises(StoreError, match="cut at"):
        pair.leave("a", "b", files)
    move = move_of(pair.folder("a"))
    assert (move and move.state) == state
    with pytest.raises(UsageError, match="no run x is offered"):
        pair.arrive("b")
    assert not pair.folder("b").path.exists()
    pair.leave("a", "b")
    moved = [
        r for r in read_journal(pair.folder("a")) if isinstance(r, Event) and r.kind == "moved"
    ]
    assert len(moved) == 1, "it is written down once"
    assert pair.arrive("b").step == 20


def reasons(pair) -> list[str]:
    records = read_journal(pair.folder("a"))
    return [str(r.data["reason"]) for r in records if isinstance(r, Event) and r.kind == "moved"]


def test_a_move_without_an_offer_may_be_cancelled(pair) -> None:
    files = pair.files("b")
    cut_before(files, "moves/")
    with pytest.raises(StoreError):
        pair.leave("a", "b", files)
    with pytest.raises(RunMoved, match="is being moved to cluster b"):
        pair.leave("a", "c")
    cancel(pair.folder("a"), pair.files("b"), RealClock(), "anna")
    assert move_of(pair.folder("a")) is None
    assert reasons(pair) == ["cheaper", "the move was cancelled"]
    pair.leave("a", "b")
    assert pair.arrive("b").step == 20


def test_an_offer_that_nobody_has_taken_may_be_withdrawn(pair) -> None:
    pair.leave("a", "b")
    cancel(pair.folder("a"), pair.files("b"), RealClock(), "anna")
    assert move_of(pair.folder("a")) is None
    with pytest.raises(UsageError, match="no run x is offered there"):
        pair.arrive("b")
    assert read_run_history(pair.folder("a")).ended == ("moved from b to a: the move was cancelled")
    with pytest.raises(UsageError, match="no move is under way here"):
        cancel(pair.folder("a"), pair.files("b"), RealClock(), "anna")


def test_an_offer_that_was_taken_is_not_withdrawn(pair) -> None:
    pair.leave("a", "b")
    pair.arrive("b")
    with pytest.raises(RunMoved, match=r"has been taken by .*: it lives in b"):
        cancel(pair.folder("a"), pair.files("b"), RealClock(), "anna")
    assert move_of(pair.folder("a")).state == "away"
    assert len(offers(pair.files("b"))) == 1


@pytest.mark.parametrize("who_is_first", ["a", "b"])
def test_of_two_that_withdraw_and_take_at_once_one_at_most_opens(
    pair, monkeypatch, who_is_first: str
) -> None:
    """Whichever comes between the other's two looks at the store."""
    pair.leave("a", "b")

    def withdraw() -> None:
        with suppress(LonghaulError):
            cancel(pair.folder("a"), pair.files("b"), RealClock(), "anna")

    def take_it() -> None:
        with suppress(LonghaulError):
            pair.arrive("b")

    if who_is_first == "b":  # all of the arrival between the look for a taking and the removal
        remove = StoreFiles.remove

        def removing(self, path: str) -> None:
            monkeypatch.undo()
            take_it()
            remove(self, path)

        monkeypatch.setattr(StoreFiles, "remove", removing)
        withdraw()
    else:  # all of the withdrawal just before the arrival says that it takes the run
        monkeypatch.setattr(
            "longhaul.run.move.arrive.take",
            lambda *given: (withdraw(), take(*given)),
        )
        take_it()
    opened = [
        pair.folder(name).exists and move_of(pair.folder(name)) is None for name in ("a", "b")
    ]
    assert opened == [who_is_first == "a", who_is_first == "b"]


def test_a_death_after_the_offer_does_not_offer_the_run_twice(pair) -> None:
    """Its folder still says that it is leaving, and the destination may have trained."""
    from dataclasses import replace

    from longhaul.logbook.moves import write_move

    done = pair.leave("a", "b")
    write_move(pair.folder("a"), replace(done, state="leaving"))
    pair.arrive("b")
    with pytest.raises(RunMoved):
        cancel(pair.folder("a"), pair.files("b"), RealClock(), "anna")
    write_move(pair.folder("a"), replace(done, state="leaving"))
    assert pair.leave("a", "b").state == "away"
    assert len(offers(pair.files("b"))) == 1


def test_the_place_of_another_run_of_that_name_is_left_alone(pair) -> None:
    (pair.folder("a").path / "run.json").write_text('{"format": 1, "name": "x", "created": 5.0}')
    pair.leave("a", "b")
    before = [offer.move for offer in offers(pair.files("b"))]
    other = type(pair)(pair.path / "other")
    with pytest.raises(NeedsPerson, match="another run of this name"):
        other.leave("a", "b", pair.files("b"))
    assert [offer.move for offer in offers(pair.files("b"))] == before
    assert move_of(other.folder("a")) is None
