"""What is said to be on the medium is there, bytes and names, whenever the power goes."""

import os
import stat
from pathlib import Path

import pytest
import torch

from fakes import FakeClock
from longhaul.checkpoint.write import render_facts, write_checkpoint
from longhaul.core.clocks import RealClock
from longhaul.core.files import create_exclusively, write_json
from longhaul.core.records import Decision, Event
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import acquire
from longhaul.logbook.ledger import LedgerState, write_decision
from longhaul.logbook.requests import submit
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment
from longhaul.store.catalogue import remove
from longhaul.store.fetching import bring_here
from longhaul.store.manifest import Manifest, write_listed_file, write_manifest
from longhaul.store.remote import RemoteTier
from longhaul.store.store_files import StoreFiles


class Disk:
    """What a power cut would leave: the bytes of files and the names in folders that were synced.

    It records `os.fsync` and whatever gives a file a name, in order. A folder holds on the medium
    what it held when it was last synced.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, Path]] = []
        """(call, path): the folder or file that was synced, or the name that was given."""
        self.hasty: list[Path] = []
        """Names that were given to what was not on the medium yet."""
        self._synced: set[tuple[int, int]] = set()
        self._names: dict[tuple[int, int], dict[str, int]] = {}
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            self.events.append(("fsync", path))
            self._synced.add(_identity(path))
            if path.is_dir():
                self._names[_identity(path)] = _names_in(path)

        monkeypatch.setattr(os, "fsync", synced)
        for call in ("rename", "replace", "link"):
            monkeypatch.setattr(os, call, self._recording(call, getattr(os, call)))

    def _recording(self, call: str, honest):
        def recorded(source, target, **more) -> None:
            self.events.append((call, Path(target)))
            # What had a hidden name was being made; whatever else is moved was there before.
            hidden = Path(source).name.startswith(".") and not Path(target).name.startswith(".")
            if hidden and not self._is_whole(Path(source)):
                self.hasty.append(Path(target))
            honest(source, target, **more)

        return recorded

    def keeps(self, path: Path) -> bool:
        """Whether a power cut now would leave `path` under its name, and whole."""
        return self._is_whole(path) and self.has_name(path)

    def forgets(self, path: Path) -> bool:
        """Whether a power cut now would leave nothing under this name."""
        return path.name not in self._names.get(_identity(path.parent), {path.name: 0})

    def has_name(self, path: Path) -> bool:
        """Whether a power cut now would leave something under this name, whole or not."""
        names = self._names.get(_identity(path.parent), {})
        return names.get(path.name) == path.stat().st_ino

    def _is_whole(self, path: Path) -> bool:
        if _identity(path) not in self._synced:
            return False
        return path.is_file() or all(map(self.keeps, path.iterdir()))


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    assert stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode), path
    return found.st_dev, found.st_ino


def _names_in(folder: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Records from now on what reaches the medium, and in which order."""
    return Disk(monkeypatch)


TENSORS = {"weight": torch.arange(10.0)}


def save(folder: Path, step: int) -> Path:
    """A checkpoint the whole way to the disk."""
    for _ in write_checkpoint(
        folder, step=step, attempt=1, tensors=TENSORS, facts=render_facts(step, 1, {}),
        still_owner=lambda: True, clock=RealClock(),
    ):  # fmt: skip
        pass
    return folder / f"step-{step}"


def test_a_decision_and_the_name_of_its_journal(disk, tmp_path: Path) -> None:
    folder = create_run(tmp_path / "trial", FakeClock())
    data = {"path": "optim.lr", "value": 1.0}
    decision = Decision(kind="set", attempt=1, step=1, time=1.0, who="anna", reason="", data=data)
    write_decision(Journal(folder, 1), LedgerState(), decision)
    (file,) = folder.journal.glob("*.jsonl")
    assert disk.keeps(file)


def test_a_decision_after_the_journal_has_begun_another_file(
    disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longhaul.logbook.journal._ROTATE_BYTES", 1)
    folder = create_run(tmp_path / "trial", FakeClock())
    journal = Journal(folder, 1)
    for step in range(3):
        journal.append_durably(Event(kind="note", attempt=1, step=step, time=1.0))
    files = list(folder.journal.glob("*.jsonl"))
    assert len(files) == 3
    assert all(map(disk.keeps, files))


def test_a_checkpoint_is_whole_before_it_has_its_name_and_then_keeps_it(disk, tmp_path) -> None:
    path = save(tmp_path / "checkpoints", 10)
    assert disk.hasty == []
    assert disk.keeps(path)
    again = save(tmp_path / "checkpoints", 10)
    assert disk.hasty == []
    assert disk.keeps(again), "the one made anew, not the one before it"


def test_a_checkpoint_that_was_removed_does_not_come_back(disk, tmp_path: Path) -> None:
    path = save(tmp_path / "checkpoints", 10)
    remove(path)
    assert disk.forgets(path)


def test_the_manifest_comes_last(disk, tmp_path: Path) -> None:
    folder = tmp_path / ".step-1.attempt-1.partial"
    folder.mkdir()
    file = write_listed_file(folder / "state.json", [b"x"])
    write_manifest(folder, Manifest(step=1, time=1.0, files=(file,)))
    synced = [path.name for call, path in disk.events if call == "fsync"]
    assert synced.index("state.json") < synced.index(folder.name)
    assert disk.hasty == []
    assert disk.keeps(folder / "manifest.json")


def test_a_segment_and_its_number(disk, tmp_path: Path) -> None:
    folder = create_run(tmp_path / "trial", FakeClock())
    opening = SegmentOpening(
        number=SegmentNumber.parse("1.00"), attempt=1, step=0, draw=0, reason="start",
        settings={}, opened=1.0,
    )  # fmt: skip
    open_segment(folder, opening, "a difference")
    segment = folder.segments / "1.00"
    assert disk.has_name(segment)
    assert disk.keeps(segment / "settings.json")
    assert disk.keeps(segment / "source.diff")


def test_a_request_is_there_once_its_asker_was_told_so(disk, tmp_path: Path) -> None:
    folder = create_run(tmp_path / "trial", FakeClock())
    submit(folder, "stop", {}, who="anna", reason="", clock=FakeClock())
    (file,) = folder.requests.glob("*.json")
    assert disk.keeps(file)
    assert disk.hasty == []


def test_a_lease_and_whatever_else_is_created_by_one_taker_alone(disk, tmp_path: Path) -> None:
    folder = create_run(tmp_path / "trial", FakeClock())
    acquire(folder, FakeClock())
    (file,) = folder.leases.glob("*.json")
    assert disk.keeps(file)
    assert create_exclusively(tmp_path / "number", b"1")
    assert disk.keeps(tmp_path / "number")
    assert disk.hasty == []


def test_a_file_that_takes_the_place_of_another(disk, tmp_path: Path) -> None:
    path = tmp_path / "asked.json"
    write_json(path, {"steps": 1})
    write_json(path, {"steps": 2})
    assert disk.keeps(path)
    assert disk.hasty == []


def test_a_checkpoint_brought_back_from_elsewhere(disk, tmp_path: Path) -> None:
    tier = RemoteTier(StoreFiles(str(tmp_path / "remote")))
    tier.send(save(tmp_path / "away", 10), lambda: True)
    (there,) = tier.checkpoints()
    path = bring_here(there, tier, tmp_path / "here", 2, lambda: True, lambda _: None)
    assert disk.keeps(path)
    assert disk.hasty == []
