import os
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import shared_memory as memory
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.supervise.leftovers import Traces

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
    return create_run(tmp_path / "run", RealClock())


@pytest.fixture
def traces(folder: RunFolder) -> Traces:
    return Traces(folder, folder.path.parent / "tmp")


@pytest.fixture
def orphan(traces: Traces) -> Iterator[tuple[str, str]]:
    """Process number and port of a forked process whose parent has gone."""
    environment = os.environ | traces.environment
    started = subprocess.Popen(
        [sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True, env=environment
    )
    pid, port = started.stdout.readline().split()
    yield pid, port
    os.kill(int(pid), 9)
    started.wait()
    started.stdout.close()


def test_a_run_that_left_nothing_left_nothing(traces: Traces) -> None:
    assert traces.leftovers() == ()


def test_an_orphan_is_found_with_its_port(traces: Traces, orphan: tuple[str, str]) -> None:
    pid, port = orphan
    found = traces.leftovers()
    assert any(line.startswith(f"process {pid} ") for line in found)
    assert f"port {port} of process {pid}" in found


@pytest.mark.usefixtures("shared_memory_to_itself")
def test_a_segment_that_nobody_uses_is_found(traces: Traces) -> None:
    segment = memory.SharedMemory(create=True, size=64)
    try:
        assert traces.leftovers() == ()  # in use
        segment.close()
        assert traces.leftovers() == (f"shared memory {segment.name}",)
    finally:
        segment.unlink()


def test_what_was_never_finished_is_found(folder: RunFolder, traces: Traces) -> None:
    (folder.checkpoints / ".step-5.attempt-1.partial").mkdir()
    (folder.path / ".asked.json.17-ab.tmp").touch()
    (folder.path.parent / "tmp" / "scratch").touch()
    (folder.path.parent / "tmp" / "torchinductor_user").mkdir()
    assert traces.leftovers() == (
        "temporary file .asked.json.17-ab.tmp",
        "temporary file checkpoints/.step-5.attempt-1.partial",
        "temporary file scratch",
    )
