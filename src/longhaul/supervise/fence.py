"""Ending what is left of an attempt whose supervisor has died (incident M14).

Workers are written down in `workers/started.json` with process number and start time, so that no
other process that got the same number is ever touched.

Enters: worker processes; later, a run's folder. Leaves: none of them running.
Never knows: leases; who calls it has found the supervisor dead, or has its place.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from longhaul.core.files import write_json
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
        body = json.loads(_path(folder).read_bytes())
        place, workers = Place(**body["place"]), [Started(**item) for item in body["workers"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if place != here():
        return []
    return [worker for worker in workers if _runs(worker)]


def fence(folder: RunFolder, patience_s: Seconds, say: Callable[[str], None]) -> None:
    """Give workers without a supervisor the time to save, then end those that are left.

    They have noticed by themselves that they are alone (`lifeline.py`), and save. To take their
    lease away before they are done would cost what they save.
    """
    say("workers of an attempt whose supervisor has died are still there: letting them save")
    deadline = time.monotonic() + patience_s
    while (left := left_over(folder)) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    for worker in left:
        say(f"rank {worker.rank}, process {worker.pid}, did not end: killed")
        # Each worker leads its own process group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
    deadline = time.monotonic() + patience_s
    while left_over(folder) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)


def _runs(worker: Started) -> bool:
    return worker.started != "" and process_started(worker.pid) == worker.started


def _path(folder: RunFolder) -> Path:
    return folder.workers / "started.json"
