"""Real `longhaul` processes on a tiny recipe. Whatever a test starts, it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fork_server import SERVER, ForkingRanks, Process
from longhaul.core.clocks import RealClock
from longhaul.core.records import Event, Record
from longhaul.logbook.folder import RunFolder, create_run, list_runs
from longhaul.logbook.reading import read_journal
from longhaul.supervise.ownership import left_over
from longhaul.supervise.ranks.progress import progress_path, read_progress
from small_runs import FEW_HELD_OUT, HALF_A_BATCH

HERE = Path(__file__).parent
DEADLINE_S = 60.0


@dataclass
class Room:
    """A folder to run in, and the processes started there."""

    path: Path
    prepared: Path
    processes: list[Process] = field(default_factory=list)
    program: tuple[str, ...] = ("-m", "longhaul")

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def folder(self, name: str = "drill") -> RunFolder:
        return RunFolder(self.runs / name)

    def start(self, *arguments: str) -> Process:
        """Start a command; training commands work in this room."""
        command = [*self.program, *arguments]
        if arguments[0] == "train":
            command += ["--prepared-dir", str(self.prepared)]
            if arguments[1] == "drill":
                command += ["--set", FEW_HELD_OUT]
                # What a run was begun with holds when it goes on.
                begins = not self.folder().exists or "--new" in arguments
                if begins and not any("batch." in word for word in arguments):
                    command += ["--set", HALF_A_BATCH]
        if arguments[0] in (
            "train",
            "set",
            "rollback",
            "fork",
            "stop",
            "note",
            "runs",
            "log",
            "tree",
            "diff",
            "sample",
            "eval",
        ) or arguments[:2] == ("data", "at"):
            command += ["--runs-dir", str(self.runs)]
        process = SERVER.start(command, self.path, os.environ | {"COLUMNS": "200"})
        self.processes.append(process)
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL a command and all workers, as where the machine goes: nobody saves anything."""
        workers = [worker for folder in list_runs(self.runs) for worker in left_over(folder)]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in (*(worker.pid for worker in workers), process.pid):
                with suppress(ProcessLookupError):
                    os.killpg(pid, number)
        process.wait()

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run a command to its end: exit code and all it printed."""
        process = self.start(*arguments)
        output, _ = process.communicate(timeout=DEADLINE_S * 2)
        return process.returncode, output

    def wait_for(
        self, what: str, seen: Callable[[Record], bool], name: str = "drill", after: int = 0
    ) -> Record:
        """Wait until a record past the first `after` ones satisfies `seen`."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            folder = self.folder(name)
            if folder.journal.is_dir():
                for record in list(read_journal(folder))[after:]:
                    if seen(record):
                        return record
            time.sleep(0.05)
        outputs = [p.pid for p in self.processes if p.poll() is None]
        raise AssertionError(f"{what} did not come within {DEADLINE_S:g} s (alive: {outputs})")

    def records(self, name: str = "drill") -> list[Record]:
        return list(read_journal(self.folder(name)))


@pytest.fixture(scope="session", autouse=True)
def ranks_are_forked() -> Iterator[None]:
    """Those that compare layouts, of a preflight and of a benchmark."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longhaul.run.preflight.layouts.subprocess", ForkingRanks)
        patch.setattr("benchmarks.equality.subprocess", ForkingRanks)
        yield


@pytest.fixture(scope="session")
def shared_prepared(prepared: Path) -> Path:
    return prepared


@pytest.fixture
def room(tmp_path: Path, shared_prepared: Path) -> Iterator[Room]:
    made = Room(tmp_path, shared_prepared)
    yield made
    for process in made.processes:
        made.kill(process)
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a bucket on an S3 server of our own."""
    pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert time.monotonic() < deadline, "the server does not answer"
            try:
                opener.open(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            except OSError:
                time.sleep(0.02)
        for name, value in {
            "NO_PROXY": "127.0.0.1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        yield "s3://bucket/runs"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.kill()
        server.wait()


@dataclass
class Stubs:
    """A run of stub workers, and its supervisors."""

    folder: RunFolder
    processes: list[Process] = field(default_factory=list)

    def plot(self, *acts: dict, processes: int = 3, **more) -> None:
        settings = {"deadline_s": 1.0, "grace_s": 5.0} | more.pop("settings", {})
        body = {"acts": acts, "processes": processes, "settings": settings} | more
        (self.folder.path / "plot.json").write_text(json.dumps(body))

    def start(self) -> Process:
        for path in self.folder.workers.glob("*.progress"):
            path.unlink()
        arguments = [str(HERE / "stub_worker.py"), str(self.folder.path)]
        process = SERVER.start(arguments, Path.cwd(), os.environ)
        self.processes.append(process)
        return process

    def run(self) -> tuple[int, str]:
        process = self.start()
        output, _ = process.communicate(timeout=DEADLINE_S)
        return process.returncode, output

    def failures(self) -> list[Event]:
        events = read_journal(self.folder, steps=False)
        return [r for r in events if isinstance(r, Event) and r.kind == "attempt-ended"]

    def worker_pid(self, rank: int) -> int:
        """Of the process that does the work, which a node's command may have started."""
        return int((self.folder.path / f"pid-{rank}").read_text())

    def step(self, rank: int = 0) -> int:
        said = read_progress(progress_path(self.folder, rank))
        return said.step if said else 0


@pytest.fixture
def stubs(tmp_path: Path) -> Iterator[Stubs]:
    made = Stubs(create_run(tmp_path / "run", RealClock()))
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    for worker in left_over(made.folder):
        os.killpg(worker.pid, signal.SIGKILL)


@pytest.fixture
def wait_until() -> Callable[[str, Callable[[], bool]], None]:
    """Wait for something, with a deadline, and say what did not come."""

    def wait(what: str, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not seen():
            assert time.monotonic() < deadline, f"{what} did not come within {DEADLINE_S:g} s"
            time.sleep(0.01)

    return wait
