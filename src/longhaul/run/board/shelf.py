"""The runs that a board shows, by a key that says nothing of where they lie."""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import duckdb

from longhaul.board import view
from longhaul.board.figures import Json
from longhaul.board.live_run import LiveRun
from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError, UsageError
from longhaul.core.strict import DamagedFile
from longhaul.logbook.folder import RunFolder, list_runs
from longhaul.logbook.lease import live_holder
from longhaul.logbook.reading import journal_files

_MOST_STEPS = 2_000_000
"""Kept in memory of all runs together; beyond it those asked for longest ago are read anew."""
_RECENT_S = 3600
"""For so long a run that has had trouble is said to have had it."""
_LEVELS = 3
"""Folders below a given one in which runs are looked for."""

Result = TypeVar("Result")


UNREADABLE = (LonghaulError, OSError, ValueError, KeyError, TypeError, duckdb.Error)
"""What a damaged or vanished run raises; none of them may hide the others."""


def in_words(error: Exception) -> str:
    """What one of `UNREADABLE` says, for a page."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return str(getattr(error, "message", error))


class Shelf:
    """Every run in or below some folders; threads may share it.

    Those below `copies` train elsewhere: whether one lives is not known here, and nobody can ask
    it for anything.
    """

    def __init__(self, folders: Sequence[Path], clock: Clock, copies: Path | None = None) -> None:
        self.clock = clock
        self._copies = copies
        self._folders = folders
        self._lock = threading.Lock()
        self._open: OrderedDict[str, LiveRun] = OrderedDict()
        self._opening: dict[str, threading.Lock] = {}
        self._known: dict[str, RunFolder] = {}
        self._glances: dict[str, tuple[object, Json]] = {}

    def glances(self) -> list[Json]:
        """One row a run, those that train first, then the one seen last."""
        rows = [self.glance(key) for key in self._found()]
        return sorted(
            rows, key=lambda row: (row["state"] != "live", -(row.get("seen") or 0), row["name"])
        )

    def glance(self, key: str) -> Json:
        """One row; a run that cannot be read has the state `unreadable`, and says why."""
        folder = self._known.get(key)
        if folder is None:
            return _unreadable(key, key, "its folder is gone")
        try:
            signature = self._signature(folder)
            known = self._glances.get(key)
            if known is None or known[0] != signature:
                row = self.ask(key, lambda run: view.glance(run, self.clock))
                known = self._glances[key] = (signature, row)
            row = known[1] | {"key": key, "now": self.clock.wall()}
            if row["trouble"] is not None:
                ago = row["now"] - row["trouble"]["time"]
                row["trouble"] = row["trouble"] | {"is_recent": ago < _RECENT_S}
            if row["state"] == "dead" and self.is_copy(folder):
                row["state"] = "elsewhere"
            return row
        except UNREADABLE as error:
            return _unreadable(key, folder.name, in_words(error))

    def is_copy(self, folder: RunFolder) -> bool:
        """Whether this run trains elsewhere."""
        return self._copies is not None and folder.path.is_relative_to(self._copies)

    def folder(self, key: str) -> RunFolder | None:
        """The run of a key that was given out; None of any other."""
        if key not in self._known:
            self._found()
        return self._known.get(key)

    def ask(self, key: str, question: Callable[[LiveRun], Result]) -> Result:
        """An answer from the run of this key, as it stands by now."""
        run = self._opened(key)
        try:
            run.refresh()
        except UNREADABLE:  # its files are others than those that were read, or it missed some
            with self._lock:
                self._open.pop(key, None)
            run = self._opened(key)
        return question(run)

    def _opened(self, key: str) -> LiveRun:
        with self._lock:
            opening = self._opening.setdefault(key, threading.Lock())
        with opening:  # a long run must not keep those who ask for another waiting
            run = self._open.get(key)
            if run is None:
                folder = self._known.get(key)
                if folder is None:
                    raise UsageError("no such run", "it was there when the board listed it")
                run = LiveRun(folder)
        with self._lock:
            self._open[key] = run
            self._open.move_to_end(key)
            while (
                len(self._open) > 1 and sum(r.steps_read for r in self._open.values()) > _MOST_STEPS
            ):
                self._open.popitem(last=False)
        return run

    def _found(self) -> list[str]:
        known = {
            key_of_path(run.path): run for folder in self._folders for run in _runs_below(folder)
        }
        self._known = known
        return list(known)

    def _signature(self, folder: RunFolder) -> object:
        """What changes whenever a row would."""
        sizes = [
            (file.name, (folder.journal / file.name).stat().st_size)
            for file in journal_files(folder.journal)
        ]
        return sizes, live_holder(folder, self.clock) is not None


def _unreadable(key: str, name: str, why: str) -> Json:
    return {"key": key, "name": name, "state": "unreadable", "why": why, "step": 0}


def _runs_below(folder: Path, levels: int = _LEVELS) -> Iterator[RunFolder]:
    try:
        runs = [RunFolder(folder)] if RunFolder(folder).exists else list_runs(folder)
    except (OSError, DamagedFile):
        return  # somebody else's, or no folder of runs
    yield from runs
    if levels > 1 and folder not in [run.path for run in runs]:
        taken = {run.path.name for run in runs}
        for path in sorted(_folders_in(folder)):
            if path.name not in taken:
                yield from _runs_below(path, levels - 1)


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(e.path) for e in entries if e.is_dir() and not e.name.startswith(".")]
    except OSError:
        return []


def key_of_path(path: Path) -> str:
    """What stands for a run in addresses: 16 hexadecimal digits."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:16]
