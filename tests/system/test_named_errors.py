"""A disk that takes no more, met by everything that writes: the error names the path."""

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.cli.common import leaving_in_order
from longhaul.core.files import create_exclusively, fsync_folder, sha256_of, write_bytes
from longhaul.core.records import Decision
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.ledger import LedgerError, LedgerState, write_decision
from longhaul.store.manifest import write_listed_file
from longhaul.supervise.nodes import ledger as nodes

SIZE = 4096


@contextmanager
def nothing_beyond(most: int) -> Iterator[None]:
    """The system takes that many bytes of a file and refuses the rest, as a full disk does."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def listed(path: Path) -> None:
    write_listed_file(path, [bytes(SIZE)])


def exclusively(path: Path) -> None:
    create_exclusively(path, bytes(SIZE))


def atomically(path: Path) -> None:
    write_bytes(path, bytes(SIZE))


def of_nodes(path: Path) -> None:
    event = nodes.NodeEvent(kind="joined", parts=("x",), host="h", time=0.0, run="r" * SIZE)
    nodes.append(path.parent, event)


@pytest.mark.parametrize("write", [listed, exclusively, atomically, of_nodes])
def test_what_cannot_be_written_is_named(tmp_path: Path, write) -> None:
    path = tmp_path / (nodes.FILE_NAME if write is of_nodes else "file")
    with nothing_beyond(100), pytest.raises(OSError, match="File too large") as refused:
        write(path)
    assert refused.value.filename == str(path)
    if write in (exclusively, atomically):
        assert list(tmp_path.iterdir()) == [], "nothing half, and nothing beside it"


def test_a_decision_that_cannot_be_written_says_into_which_file(tmp_path: Path) -> None:
    folder = create_run(tmp_path / "trial", FakeClock())
    data = {"path": "optim.lr", "value": 1.0}
    decision = Decision(
        kind="set", attempt=1, step=1, time=1.0, who="anna", reason="r" * SIZE, data=data
    )
    with nothing_beyond(100), pytest.raises(LedgerError, match="File too large") as refused:
        write_decision(Journal(folder, 1), LedgerState(), decision)
    assert str(folder.journal) in refused.value.message


@pytest.mark.parametrize("act", [fsync_folder, sha256_of])
def test_what_cannot_be_synced_or_read_is_named(
    tmp_path: Path, act, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path
    if act is sha256_of:
        path = tmp_path / "file"
        path.write_bytes(b"x")

    def refuse(*arguments: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr("longhaul.core.files.moved", refuse)
    with pytest.raises(OSError, match="Input/output error") as refused:
        act(path)
    assert refused.value.filename == str(path)


def test_an_error_without_a_path_says_who_met_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where torch is imported a process ends at once, and this one is that of the tests.
    monkeypatch.setattr("longhaul.cli.common._leave", sys.exit)

    def write_nowhere() -> None:
        with Path("/dev/full").open("wb", buffering=0) as full:
            full.write(b"x")

    with pytest.raises(SystemExit) as left, leaving_in_order():
        write_nowhere()
    assert left.value.code == 17
    said = capsys.readouterr().err
    assert said.startswith("longhaul: No space left on device: in write_nowhere, ")
    assert "?" not in said
