"""Ending what is left of an attempt whose supervisor has died (incident M14).

Workers are written down in `workers/started.json` with process number and start time, so that no
other process that got the same number is ever touched.

Enters: worker processes; later, a run's folder. Leaves: none of them running.
Never knows: leases; who calls it has found the supervisor dead, and is asked to look again.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from longhaul.core.files import write_json
from longhaul.core.strict import read_object
from longhaul.core.units import Seconds
from longhaul.logbook.folder import FORMAT, RunFolder
from longhaul.logbook.holder import Place, here, process_started

_LOOK_EVERY_S: Seconds = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """A worker process that was started."""

    rank: int
    pid: int
    started: str
    """As `logbook.holder.process_started` tells it."""


def write_down(folder: RunFolder, attempt: int, pids: Iterable[tuple[int, int]]) -> None:
    """Keep who was started: pairs of rank and process number."""
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

    They have noticed by themselves that they are alone (`lifeline.py`), and save. To take their
    lease away before they are done would cost what they save.

    Args:
        folder: the run.
        grace_s: what they get.
        say: tells a person.
        refuse_if_held: raises where somebody trains the run. Asked again right before each kill:
            this process may have been stopped for hours, and somebody else may have fenced these
            workers and started others since.

    Raises:
        LeaseHeld: by `refuse_if_held`; nobody was killed.
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
        time.sleep(_LOOK_EVERY_S)


def _runs(worker: Started) -> bool:
    return worker.started != "" and process_started(worker.pid) == worker.started


def _path(folder: RunFolder) -> Path:
    return folder.workers / "started.json"
