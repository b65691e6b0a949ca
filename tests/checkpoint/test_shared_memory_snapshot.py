"""Which snapshots of an earlier process may be gone on from, by what the journal says."""

from dataclasses import replace
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.checkpoint.host_buffers import SnapshotInSharedMemory
from longhaul.checkpoint.shared_memory_snapshot import Origin, denied, newest_saved, repeats
from longhaul.core.records import Decision, Event
from longhaul.logbook.folder import create_run
from longhaul.store.manifest import Manifest, write_listed_file, write_manifest

TAKEN = SnapshotInSharedMemory(step=50, draw=500, attempt=2, time=100.0, checksum=0)


def decision(
    kind: str, who: str = "supervisor", time: float = 101.0, /, attempt: int = 2, **data: object
) -> Decision:
    return Decision(kind=kind, attempt=attempt, step=60, time=time, who=who, reason="", data=data)


def event(kind: str, time: float = 101.0, /, attempt: int = 2, **data: object) -> Event:
    return Event(kind=kind, attempt=attempt, step=60, time=time, data=data)


def recover(to: int | None, time: float = 101.0, poison: tuple = ()) -> Decision:
    back = None if to is None else {"from": 60, "to": to, "draw": to}
    return decision("recover", "pilot", time, rollback=back, poison=poison)


def poisoned(step: int, who: str = "supervisor", time: float = 101.0) -> Decision:
    return decision("checkpoint-health", who, time, checkpoint=step, health="poisoned")


def corrupt(sound_step: int | None, time: float = 101.0, kind: str = "corrupt") -> Event:
    return event("machine-verdict", time, kind=kind, sound_step=sound_step)


@pytest.mark.parametrize("record", [
    recover(40),                        # gone back behind it, and killed before it was dropped
    recover(None, poison=((45, "a"),)),
    poisoned(40),                       # the same crash again and again: go further back
    corrupt(40),
    corrupt(None),
])  # fmt: skip
def test_a_state_that_was_given_up_since_is_not_gone_on_from(record) -> None:
    assert denied(TAKEN, [event("attempt-started"), record])


@pytest.mark.parametrize("record", [
    recover(50),
    recover(40, time=99.0),             # it was taken on the way up again
    poisoned(60),
    poisoned(40, who="pilot"),          # the medium gave back other bytes
    corrupt(50),
    corrupt(None, kind="straggler"),
    decision("checkpoint-health", "pilot", checkpoint=40, health="verified"),
    decision("set", "alice", path="optim.lr", value=0.1),
])  # fmt: skip
def test_anything_else_leaves_it_as_good_as_it_was(record) -> None:
    assert denied(TAKEN, [record]) == ""


AGAINST = [recover(40), recover(None, poison=((45, "a"),)), poisoned(40), corrupt(40)]


@pytest.mark.parametrize("record", AGAINST)
@pytest.mark.parametrize("clock", [0.0, 99.0, 1e9])
def test_a_clock_that_was_set_changes_nothing(record, clock: float) -> None:
    """What belongs to a later attempt came later, and what belongs to an earlier one before."""
    assert denied(TAKEN, [replace(record, attempt=3, time=clock)])
    assert denied(TAKEN, [replace(record, attempt=1, time=clock)]) == ""
    if record.kind != "recover":  # these end the attempt they belong to
        assert denied(TAKEN, [replace(record, time=clock)])


def test_memory_from_before_a_move_is_not_gone_on_from() -> None:
    """The run was trained elsewhere since, maybe with other decisions."""
    assert "moved to another cluster" in denied(TAKEN, [event("moved", 50.0, attempt=3)])
    assert denied(TAKEN, [event("moved", 150.0, attempt=1)]) == "", "it had come back before"


def failed(cause: str, reached: int | None) -> Event:
    return event("attempt-ended", cause=cause, reached=reached)


def test_memory_is_trusted_once_and_not_when_the_same_failure_comes_again() -> None:
    assert not repeats([])
    assert not repeats([failed("killed", 52)])
    assert not repeats([failed("killed", 52), failed("hang", 52)])
    assert not repeats([failed("killed", 52), failed("killed", 70)])
    assert not repeats([failed("killed", None), failed("killed", 70)])
    assert not repeats([event("attempt-ended", reason="preempted"), failed("killed", 52)])
    assert repeats([failed("killed", 52), failed("killed", 53)])
    assert repeats([failed("killed", None), failed("killed", None)])


def test_what_lay_in_memory_is_no_checkpoint() -> None:
    assert Origin(7, "memory").checkpoint is None
    assert Origin(7, "disk").checkpoint == 7
    assert "no checkpoint" in str(Origin(None, "disk"))


def test_what_lies_on_the_disk_is_known_to_a_run_that_goes_on_from_memory(tmp_path: Path) -> None:
    folder = create_run(tmp_path / "run", FakeClock())
    assert newest_saved(Origin(25, "memory"), folder) is None
    for step in (10, 20):
        path = folder.checkpoints / f"step-{step}"
        path.mkdir()
        state = write_listed_file(path / "state.json", [b"state"])
        write_manifest(path, Manifest(step=step, time=0.0, files=(state,)))
    (folder.checkpoints / "step-30").mkdir()
    (folder.checkpoints / "step-30" / "manifest.json").write_text("torn")
    assert newest_saved(Origin(25, "memory"), folder) == 20
    assert newest_saved(Origin(10, "disk"), folder) == 10, "20 could not be read"
