"""A pipe that nobody reads, for real: training neither waits nor is taken for a hang."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from safetensors import safe_open

from fork_server import SERVER, Process
from longhaul.core.errors import ExitCode
from longhaul.core.records import Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.store.catalogue import catalogue
from longhaul.supervise.ownership import left_over
from small_runs import FEW_HELD_OUT, HALF_A_STEP

pytestmark = pytest.mark.slow  # `make drills-real`

DEADLINE_S = 90.0
STEPS = 120
SETS = (FEW_HELD_OUT, f"train.steps={STEPS}", *HALF_A_STEP)


@dataclass
class Unread:
    """Commands whose output goes into a pipe that is full before they begin."""

    path: Path
    pipe: IO[bytes]
    processes: list[Process]

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path / "runs/drill")

    def train(self, *options: str) -> Process:
        sets = [f"--set={option}" for option in (*SETS, *options)]
        command = ["-m", "longhaul", "train", "drill", *sets]
        process = SERVER.start(command, self.path, os.environ, self.pipe)
        self.processes.append(process)
        return process

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self.folder.journal.is_dir():
                records = read_journal(self.folder)
                if any(isinstance(r, StepRecord) and r.step >= step for r in records):
                    return
            time.sleep(0.05)
        raise AssertionError(f"step {step} did not come within {DEADLINE_S:g} s")


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Unread]:
    reading_end, writing_end = os.pipe()
    fcntl.fcntl(writing_end, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing_end, False)
    with suppress(BlockingIOError):
        while os.write(writing_end, b"."):
            pass
    os.set_blocking(writing_end, True)
    made = Unread(tmp_path, os.fdopen(writing_end, "wb"), [])
    yield made
    workers = left_over(made.folder) if made.folder.exists else []
    for pid in (*(process.pid for process in made.processes), *(w.pid for w in workers)):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    for process in made.processes:
        process.wait()
    os.close(reading_end)
    made.pipe.close()


def state(folder: RunFolder) -> dict[str, bytes]:
    found = {}
    for path in sorted(catalogue(folder.checkpoints)[-1].path.glob("*.safetensors")):
        with safe_open(str(path), framework="numpy") as file:
            found |= {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return found


def endings(folder: RunFolder) -> list[str]:
    events = read_journal(folder, steps=False)
    return [
        str(event.data["reason"])
        for event in events
        if isinstance(event, Event) and event.kind == "attempt-ended"
    ]


def test_a_run_that_nobody_reads_finishes_with_the_bytes_it_would_have_had(
    unread: Unread, tmp_path: Path
) -> None:
    process = unread.train("supervise.deadline_s=5")
    assert process.wait(DEADLINE_S) == ExitCode.FINISHED
    assert endings(unread.folder) == ["finished"]
    log = (unread.folder.workers / "0.log").read_text()
    assert f"finished: {STEPS} steps" in log

    read = tmp_path / "read"
    read.mkdir()
    command = ["-m", "longhaul", "train", "drill", *(f"--set={option}" for option in SETS)]
    with (read / "said").open("w") as said:
        process = SERVER.start([*command, "--set=supervise.deadline_s=5"], read, os.environ, said)
    assert process.wait(DEADLINE_S) == ExitCode.FINISHED
    assert state(unread.folder) == state(RunFolder(read / "runs/drill"))


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, ExitCode.START_AGAIN), (signal.SIGINT, ExitCode.INTERRUPTED)],
)
def test_a_run_that_nobody_reads_still_hears_signals(
    unread: Unread, number: signal.Signals, code: ExitCode
) -> None:
    process = unread.train("train.steps=100000")
    unread.wait_for_step(30)
    process.send_signal(number)
    assert process.wait(DEADLINE_S) == code
    saved = catalogue(unread.folder.checkpoints)[-1].step
    last = max(r.step for r in read_journal(unread.folder) if isinstance(r, StepRecord))
    assert saved == last


def test_a_worker_that_is_killed_under_a_full_pipe_is_replaced(unread: Unread) -> None:
    """The supervisor tells of the death on the same pipe, and must not wait there either."""
    process = unread.train()
    unread.wait_for_step(20)
    os.kill(left_over(unread.folder)[0].pid, signal.SIGKILL)
    assert process.wait(DEADLINE_S) == ExitCode.FINISHED
    assert endings(unread.folder)[-1] == "finished"
    assert len(endings(unread.folder)) == 2
