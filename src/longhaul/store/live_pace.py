"""Copies made beside live runs: they yield when one of the runs slows down.

A command that copies is no part of a run, so it reads the runs' journals: steps made before it
began are what a step takes, later ones are compared with them. At Reka the copies of colleagues cut
the MFU of everybody who trained on the same file system.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder, list_runs
from longhaul.logbook.lease import live_holder
from longhaul.logbook.reading import read_last
from longhaul.store.transfers import FEWEST_QUIET, LEAST_SHARE, Pace, Throttle

_LOOK_EVERY_S: Seconds = 2.0
_STEPS_READ = 64
"""Newest steps of a run that one look takes in."""
_LOWEST_VERDICTS = 4
"""At the least share for so many verdicts in a row, and the steps are still slow: maybe it is not
the copy that slows them. It rests for a few steps and compares anew."""
_AFTER_REST = 1 / 4


class LiveShares:
    """The share of its time that a copy may work beside several runs: that of the one it slows
    most. Pure: no clock, no file.

    Each run has a `Pace` of its own (additive increase, multiplicative decrease).
    """

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}
        self._lowest: dict[str, int] = {}
        """Observations made in a row at the least share."""
        self._resting: dict[str, int] = {}
        """Quiet steps seen since the copy rests for a run."""

    def observe(self, run: str, seconds_per_token: float, transferring: bool) -> None:
        """Learn from one step of a run, and whether the copy was at work while it was made."""
        pace = self._paces.setdefault(run, Pace())
        if run in self._resting:
            self._rest(run, seconds_per_token)
            return
        pace.observe(seconds_per_token, transferring)
        if not transferring or pace.share > LEAST_SHARE:
            self._lowest.pop(run, None)
            return
        self._lowest[run] = self._lowest.get(run, 0) + 1
        if self._lowest[run] > _LOWEST_VERDICTS * FEWEST_QUIET:
            self._paces[run], self._resting[run] = Pace(), 0
            del self._lowest[run]

    def forget(self, runs: Sequence[str]) -> None:
        """These do not train any more, and keep nobody waiting."""
        for known in (self._paces, self._lowest, self._resting):
            for run in runs:
                known.pop(run, None)

    @property
    def runs(self) -> frozenset[str]:
        """Those that count."""
        return frozenset(self._paces)

    @property
    def share(self) -> float:
        """Between 1/32 and 1; 0 while the copy rests to see how long a step takes without it."""
        if self._resting:
            return 0.0
        return min((pace.share for pace in self._paces.values()), default=1.0)

    def _rest(self, run: str, seconds_per_token: float) -> None:
        self._resting[run] += 1
        # The first one was begun while the copy was at work.
        if self._resting[run] > 1:
            self._paces[run].observe(seconds_per_token, transferring=False)
        if self._resting[run] > FEWEST_QUIET:
            del self._resting[run]
            self._paces[run].share = _AFTER_REST


class LiveRuns:
    """The runs in a folder that train now, as `shares` sees them."""

    def __init__(self, runs: Path, clock: Clock) -> None:
        self.shares = LiveShares()
        self._runs = runs
        self._clock = clock
        self._began = clock.wall()
        self._seen: dict[str, tuple[int, float]] = {}
        """Attempt and time of each run's last step that was taken in."""

    def look(self) -> float:
        """Take in what the live runs have journalled since the last look; the share now. A run that
        cannot be read does not count.
        """
        live: set[str] = set()
        with suppress(OSError, LonghaulError):
            for folder in list_runs(self._runs):
                with suppress(OSError, LonghaulError, ValueError):
                    if live_holder(folder, self._clock) is not None:
                        live.add(folder.name)
                        self._take_in(folder)
        self.shares.forget(sorted(self.shares.runs - live))
        return self.shares.share

    def _take_in(self, folder: RunFolder) -> None:
        seen = self._seen.get(folder.name, (0, 0.0))
        for record in read_last(folder, _STEPS_READ, events=False):
            if not isinstance(record, StepRecord) or (record.attempt, record.time) <= seen:
                continue
            seen = record.attempt, record.time
            if record.tokens:
                figure = record.seconds.get("training", 0.0) / record.tokens
                self.shares.observe(folder.name, figure, record.time > self._began)
        self._seen[folder.name] = seen


@contextmanager
def yielding(throttle: Throttle, runs: Path | None, clock: Clock) -> Iterator[None]:
    """Let the transfers of the body yield to the runs that train in a folder; None: to nobody."""
    if runs is None:
        yield
        return
    live, stop = LiveRuns(runs, clock), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            throttle.yield_to(live.look())
            stop.wait(_LOOK_EVERY_S)

    throttle.yield_to(live.look())
    thread = threading.Thread(target=watch, name="yield to live runs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_LOOK_EVERY_S)
