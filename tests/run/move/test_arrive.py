"""A run arrives: never half, never twice, never from an old state."""

import errno
import json
import shutil
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.core.errors import NeedsPerson, UsageError
from longhaul.data.verification import pin_texts, pinned_texts
from longhaul.logbook.lease import LeaseHeld, acquire
from longhaul.logbook.moves import RunMoved, move_of
from longhaul.logbook.run_spec import read_run_spec
from longhaul.store.catalogue import catalogue
from longhaul.store.manifest import verify
from longhaul.store.transfers import StoreError


def test_all_of_it_comes_and_the_folder_opens(pair) -> None:
    pair.leave("a", "b")
    pair.arrive("b", "a")
    a, b = pair.folder("a"), pair.folder("b")
    assert move_of(b) is None
    assert [c.step for c in catalogue(b.checkpoints)] == [20]
    for path in (*a.journal.glob("*.jsonl"), a.identity, *a.segments.rglob("*.json")):
        assert (b.path / path.relative_to(a.path)).read_bytes() == path.read_bytes()
    assert read_run_spec(b).prepared == str(pair.path / "prepared-b")
    assert not (b.path / ".arriving").exists()


def test_done_twice_it_says_so(pair) -> None:
    pair.leave("a", "b")
    pair.arrive("b")
    pair.arrive("b")
    assert "run x has arrived already, at step 20" in pair.said


@pytest.mark.parametrize("cut", ["run.json", "journal-", "weights.bin", ".taken"])
def test_cut_off_anywhere_nothing_starts_and_it_goes_on(pair, monkeypatch, cut: str) -> None:
    pair.leave("a", "b")
    files = pair.files("b")
    for method in ("_read", "_send"):
        original = getattr(files, method)

        def failing(*given, original=original) -> None:
            if any(cut in str(word) for word in given):
                raise StoreError("cut")
            original(*given)

        monkeypatch.setattr(files, method, failing)
    with pytest.raises(StoreError, match="cut"):
        pair.arrive("b", files=files)
    assert move_of(pair.folder("b")).state == "arriving"
    pair.arrive("b")
    verify(pair.folder("b").checkpoints / "step-20")
    assert move_of(pair.folder("b")) is None


def test_it_comes_back_and_what_lay_there_is_used(pair, add_checkpoint) -> None:
    pair.leave("a", "b")
    pair.arrive("b")
    add_checkpoint(pair.folder("b"), 28, b"made in b")
    pair.leave("b", "a")
    pair.said.clear()
    pair.arrive("a", "b")
    assert move_of(pair.folder("a")) is None
    assert move_of(pair.folder("b")).state == "away"
    assert [c.step for c in catalogue(pair.folder("a").checkpoints)] == [10, 20, 28]
    assert any("fetching step-28" in line for line in pair.said)


def test_later_checkpoints_that_the_run_has_left_are_not_gone_on_from(pair, add_checkpoint) -> None:
    add_checkpoint(pair.folder("a"), 25, b"damaged")
    weights = pair.folder("a").checkpoints / "step-25" / "weights.bin"
    content = weights.read_bytes()
    weights.write_bytes(b"?" + content[1:])
    pair.leave("a", "b")
    pair.arrive("b")
    pair.leave("b", "a")
    weights.write_bytes(content)  # the medium was to blame
    pair.arrive("a")
    assert [c.step for c in catalogue(pair.folder("a").checkpoints)] == [10, 20]
    assert any("step-25: later than the offer" in line for line in pair.said)


def test_an_old_offer_is_not_taken_again(pair) -> None:
    """a → b → a → b: the store of `a` still has the offer by which the run once came back."""
    pair.leave("a", "b")
    pair.arrive("b")
    pair.leave("b", "a")
    pair.arrive("a")
    pair.leave("a", "b")
    with pytest.raises(RunMoved, match="was moved to cluster b"):
        pair.arrive("a")
    assert move_of(pair.folder("a")).state == "away"
    pair.arrive("b", "a")
    assert move_of(pair.folder("b")) is None


def test_an_offer_is_taken_by_one_folder(pair) -> None:
    pair.leave("a", "b")
    pair.arrive("b")
    with pytest.raises(NeedsPerson, match="was taken before by"):
        pair.arrive("b", at="c")
    assert move_of(pair.folder("c")).state == "arriving"


def test_what_is_not_meant_for_this_cluster_is_refused(pair) -> None:
    with pytest.raises(UsageError, match="no run x is offered there"):
        pair.arrive("b")
    pair.leave("a", "b")
    for here, source in (("c", ""), ("b", "c")):
        with pytest.raises(UsageError, match="was offered by cluster a to b"):
            pair.arrive(here, source, files=pair.files("b"))
    with pytest.raises(RunMoved):  # its own folder
        pair.arrive("b", at="a")


def test_another_run_of_that_name_is_left_alone(pair) -> None:
    pair.leave("a", "b")
    other = type(pair)(pair.path / "other")
    (other.folder("a").path / "run.json").write_text('{"format": 1, "name": "x", "created": 5.0}')
    shutil.copytree(other.folder("a").path, pair.folder("b").path)
    with pytest.raises(UsageError, match="another run of this name is here"):
        pair.arrive("b")
    assert move_of(pair.folder("b")) is None


def test_a_copy_that_was_never_moved_is_left_alone(pair) -> None:
    shutil.copytree(pair.folder("a").path, pair.folder("b").path)
    pair.leave("a", "b")
    with pytest.raises(UsageError, match="was never moved away"):
        pair.arrive("b")
    assert move_of(pair.folder("b")) is None


def test_two_cannot_fetch_it_at_once(pair) -> None:
    pair.leave("a", "b")
    pair.folder("b").path.mkdir(parents=True)
    pair.folder("b").leases.mkdir()
    with acquire(pair.folder("b"), RealClock(), after=50).keep(), pytest.raises(LeaseHeld):
        pair.arrive("b")


def test_without_room_nothing_is_fetched(pair, monkeypatch) -> None:
    pair.leave("a", "b")
    usage = shutil.disk_usage(pair.path)._replace(free=1000)
    monkeypatch.setattr("longhaul.run.move.arrive.shutil.disk_usage", lambda _: usage)
    with pytest.raises(NeedsPerson, match=r"the disk is full .* are to come, and 1 kB are free"):
        pair.arrive("b")
    assert move_of(pair.folder("b")).state == "arriving"
    assert catalogue(pair.folder("b").checkpoints) == []
    monkeypatch.undo()
    pair.arrive("b")
    assert move_of(pair.folder("b")) is None


def test_a_disk_that_fills_up_in_the_middle_keeps_the_folder_closed(pair, monkeypatch) -> None:
    pair.leave("a", "b")

    def full(self: Path, *given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    with monkeypatch.context() as patch:
        patch.setattr("longhaul.store.fetching.Path.rename", full)
        with pytest.raises(NeedsPerson, match="the disk is full"):
            pair.arrive("b")
    assert move_of(pair.folder("b")).state == "arriving"
    pair.arrive("b")
    verify(pair.folder("b").checkpoints / "step-20")
    assert move_of(pair.folder("b")) is None


def test_its_texts_are_found_by_what_they_hold(pair) -> None:
    pin_texts(pair.folder("a"), [(pair.path / "prepared-a" / "text-1a2b", "5" * 64)])
    pair.leave("a", "b")
    pair.arrive("b")
    (pin,) = pinned_texts(pair.folder("b"))
    assert pin == (pair.path / "prepared-b" / "text-1a2b", "5" * 64)
    assert any("`longhaul data pull text-1a2b` brings it" in line for line in pair.said)


def test_paths_of_the_source_that_are_not_here_are_named(pair) -> None:
    path = pair.folder("a").run_spec
    body = json.loads(path.read_text())
    body["values"]["supervise"] = {"node_ledger": "/nowhere/nodes"}
    path.write_text(json.dumps(body))
    pair.leave("a", "b")
    pair.arrive("b")
    assert any("supervise.node_ledger: /nowhere/nodes is not here" in line for line in pair.said)
