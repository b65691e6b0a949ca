"""Whether a supervisor may go on: the run's folder is there, and no worker is left alone."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from longhaul.core.events import EventKind
from longhaul.core.files import write_json
from longhaul.core.strict import read_object
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import DISK_FULL, FORMAT, Reserve, RunFolder, why_paused
from longhaul.logbook.holder import Place, here, process_started
from longhaul.logbook.lease import GONE_S
from longhaul.supervise.history import SupervisedRun, usable_checkpoints

_ENDED_LOOK_EVERY_S: Seconds = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """A worker process that was started."""

    rank: int
    pid: int
    started: str


def write_down(folder: RunFolder, attempt: int, pids: Iterable[tuple[int, int]]) -> None:
    """Keep who was started, and when: another process may get the same number later."""
    workers = [asdict(Started(rank, pid, process_started(pid) or "")) for rank, pid in pids]
    body = {"format": FORMAT, "attempt": attempt, "place": asdict(here()), "workers": workers}
    write_json(_path(folder), body)


def left_over(folder: RunFolder) -> list[Started]:
    """Workers of the last attempt that still run on this machine."""
    try:
        body = read_object(_path(folder))
        place, workers = Place(**body["place"]), [Started(**item) for item in body["workers"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if place != here():
        return []
    return [worker for worker in workers if _runs(worker)]


def fence(
    folder: RunFolder,
    grace_s: Seconds,
    say: Callable[[str], None],
    refuse_if_held: Callable[[], object],
) -> None:
    """Give workers without a supervisor the time to save, then end those that are left.

    They have noticed by themselves that they are alone (`pipes.py`), and save. To take their
    lease away before they are done would cost what they save. `refuse_if_held` is called again
    before each kill: somebody else may have fenced them meanwhile. It raises LeaseHeld where
    somebody trains the run; nobody was killed.
    """
    workers = left_over(folder)
    refuse_if_held()  # these are a dead supervisor's, and not those of one that came meanwhile
    say("workers of an attempt whose supervisor has died are still there: letting them save")
    _await_end(workers, grace_s)
    for worker in workers:
        refuse_if_held()
        if not _runs(worker):
            continue
        # Each worker leads its own process group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
            say(f"rank {worker.rank}, process {worker.pid}, did not end: killed")
    _await_end(workers, grace_s)


def _await_end(workers: Sequence[Started], most_s: Seconds) -> None:
    deadline = time.monotonic() + most_s
    while any(map(_runs, workers)) and time.monotonic() < deadline:
        time.sleep(_ENDED_LOOK_EVERY_S)


def _runs(worker: Started) -> bool:
    return worker.started != "" and process_started(worker.pid) == worker.started


def _path(folder: RunFolder) -> Path:
    return folder.workers / "started.json"


RETRY_S: Seconds = 5.0
_AFTER_WORKERS_S: Seconds = GONE_S / 2
"""A worker that makes short steps notices first, and knows more to tell."""
_START_BYTES: Bytes = 1 << 20
"""What a worker writes before its first step: a segment, progress, the first records."""


class Ownership:
    """A supervisor's hold on its run."""

    def __init__(self, run: SupervisedRun) -> None:
        self._run = run
        self._reached: int | None = None
        self._paused: Seconds | None = None

    def look(self, reached: int | None, running: bool, stopping: bool) -> bool:
        """Call it now and then; False while the folder is away: nobody writes there then. RunGone
        if it has been away for too long. `reached`: updates made, if it is known. `running`:
        workers do, which should notice.
        """
        self._reached = self._reached if reached is None else reached
        patience_s = GONE_S + _AFTER_WORKERS_S if running else 0.0 if stopping else GONE_S
        self._run.lease.refuse_if_gone(self._reached, after_s=patience_s)
        return not self._run.lease.gone()

    def try_to_renew(self) -> bool:
        """Take the next attempt's number; False where the disk is full, which is told once.

        LeaseHeld if somebody else has taken the run over; RunGone if the folder is away, or another
        run's; OSError if the lease cannot be written for another reason than a full disk.
        """
        run = self._run
        run.lease.refuse_if_gone(self._reached, after_s=0.0)
        try:
            full = not (
                self._has_space() or (Reserve(run.folder.reserve).release() and self._has_space())
            )
            if not full:
                run.lease.renew()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            full = True
        if full and self._paused is None:
            self._paused = run.clock.monotonic()
            saved = max(usable_checkpoints(run.folder), default=None)
            where = "" if self._reached is None else f" at step {self._reached}"
            run.say(
                f"PAUSED{where}: {why_paused(run.folder.checkpoints, saved)}\n"
                "  → free space there: training then goes on by itself"
            )
        if not full and self._paused is not None:
            waited_s, self._paused = run.clock.monotonic() - self._paused, None
            run.emit(EventKind.RESUMED, self._reached or 0, reason="there is space again",
                     waited_s=round(waited_s, 3))  # fmt: skip
            run.say("there is space again: training goes on")
        return not full

    def _has_space(self) -> bool:
        disk = shutil.disk_usage(self._run.folder.path)
        # Some network file systems do not know their size and say 0.
        return not disk.total or disk.free >= _START_BYTES
