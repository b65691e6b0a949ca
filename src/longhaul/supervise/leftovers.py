"""What a run may leave behind on a machine that outlives it, looked for once it has ended."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder

MARK = "LONGHAUL_DRILL"
"""Environment variable that all processes of a drilled run inherit."""
_SHARED_MEMORY = Path("/dev/shm")
_TORCHS_CACHE = "torchinductor_"
"""Made by torch for itself, one for each user of a machine, and kept."""
_GONE_WITHIN_S: Seconds = 10.0
"""What processes get to be gone after the run's last command has ended."""
_LOOK_EVERY_S: Seconds = 0.05


class Traces:
    """Marks the processes of one run, whose `TMPDIR` is `temporary`, and finds what they leave."""

    def __init__(self, folder: RunFolder, temporary: Path) -> None:
        temporary.mkdir(parents=True, exist_ok=True)
        self._mark = secrets.token_hex(8)
        self._folder, self._temporary = folder, temporary
        self._segments = shared_memory()
        self.environment = {MARK: self._mark, "TMPDIR": str(temporary.resolve())}
        """For the run's commands."""

    def let_go(self) -> None:
        """Wait until its processes are gone; workers of a killed supervisor need a moment."""
        deadline = time.monotonic() + _GONE_WITHIN_S
        while processes_with(self._mark) and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)

    def leftovers(self) -> tuple[str, ...]:
        """Processes, ports, new segments of shared memory and temporary files still there."""
        new = shared_memory() - self._segments
        # Segments that a process has open may belong to others of this machine.
        segments = sorted(new - _mapped()) if new else ()
        partial = (path for path in self._folder.checkpoints.glob(".*") if path.is_dir())
        unfinished = sorted({*self._folder.path.rglob(".*.tmp"), *partial})
        kept = sorted(
            path for path in self._temporary.iterdir() if not path.name.startswith(_TORCHS_CACHE)
        )
        return (
            *_processes(self._mark),
            *(f"shared memory {name}" for name in segments),
            *(f"temporary file {path.relative_to(self._folder.path)}" for path in unfinished),
            *(f"temporary file {path.name}" for path in kept),
        )

    def close(self) -> None:
        """End whatever a drill that failed has left running."""
        for process in processes_with(self._mark):
            with suppress(psutil.Error, ProcessLookupError):
                if process.pid != os.getpid():
                    process.kill()


def shared_memory() -> frozenset[str]:
    """Names of this user's segments of shared memory, where the system shows them."""
    with suppress(OSError):
        return frozenset(
            path.name for path in _SHARED_MEMORY.iterdir() if path.lstat().st_uid == os.getuid()
        )
    return frozenset()


def processes_with(mark: str) -> list[psutil.Process]:
    """Processes whose environment carries the mark, forked ones included."""
    return [
        process
        for process in psutil.process_iter(["status", "environ"])
        if process.info["status"] != psutil.STATUS_ZOMBIE
        and (process.info["environ"] or {}).get(MARK) == mark  # none of another user's
    ]


def _processes(mark: str) -> Iterator[str]:
    for process in processes_with(mark):
        name, ports = "process", []
        with suppress(psutil.Error):
            name = process.name()
            ports = [c.laddr.port for c in process.net_connections() if c.status == "LISTEN"]
        yield f"process {process.pid} ({name})"
        yield from (f"port {port} of process {process.pid}" for port in ports)


def _mapped() -> frozenset[str]:
    names: set[str] = set()
    for pid in psutil.pids():
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            names.update(line.rpartition("/dev/shm/")[2] for line in lines if "/dev/shm/" in line)
        with suppress(OSError):
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    target = link.readlink()
                    if target.parent == _SHARED_MEMORY:
                        names.add(target.name)
    return frozenset(names)
