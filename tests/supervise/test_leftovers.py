import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory as memory
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.supervise.leftovers import MARK, leftovers, shared_memory

LISTENER = """
import os, socket, sys, time
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    free.listen()
    if os.fork():
        os._exit(0)
    print(os.getpid(), free.getsockname()[1], flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "tmp").mkdir()
    return create_run(tmp_path / "run", RealClock())


@pytest.fixture
def orphan() -> Iterator[tuple[str, str]]:
    """Process number and port of a forked process whose parent has gone."""
    environment = os.environ | {MARK: "this-test"}
    started = subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True, env=environment
    )
    pid, port = started.stdout.readline().split()
    yield pid, port
    os.kill(int(pid), 9)
    started.wait()
    started.stdout.close()


def look(folder: RunFolder, before: frozenset[str] | None = None) -> tuple[str, ...]:
    before = shared_memory() if before is None else before
    return leftovers("this-test", folder, folder.path.parent / "tmp", before)


def test_a_run_that_left_nothing_left_nothing(folder: RunFolder) -> None:
    assert look(folder) == ()


def test_an_orphan_is_found_with_its_port(folder: RunFolder, orphan: tuple[str, str]) -> None:
    pid, port = orphan
    found = look(folder)
    assert any(line.startswith(f"process {pid} ") for line in found)
    assert f"port {port} of process {pid}" in found


@pytest.mark.usefixtures("shared_memory_to_itself")
def test_a_segment_that_nobody_uses_is_found(folder: RunFolder) -> None:
    before = shared_memory()
    segment = memory.SharedMemory(create=True, size=64)
    try:
        assert look(folder, before) == ()  # in use
        segment.close()
        assert look(folder, before) == (f"shared memory {segment.name}",)
    finally:
        segment.unlink()


def test_what_was_never_finished_is_found(folder: RunFolder) -> None:
    (folder.checkpoints / ".step-5.attempt-1.partial").mkdir()
    (folder.path / ".asked.json.17-ab.tmp").touch()
    (folder.path.parent / "tmp" / "scratch").touch()
    (folder.path.parent / "tmp" / "torchinductor_user").mkdir()
    assert look(folder) == (
        "temporary file .asked.json.17-ab.tmp",
        "temporary file checkpoints/.step-5.attempt-1.partial",
        "temporary file scratch",
    )
