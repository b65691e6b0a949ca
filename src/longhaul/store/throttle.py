"""How fast transfers may go: as fast as they like, until the step grows slower for it.

All transfers of a run share one pace, whichever threads they are on.

Enters: step times from the training thread, and whether a transfer ran beside them; pieces from
those that transfer. Leaves: rests between pieces, which end at once when the run does.
Never knows: stores, or files.
"""

import statistics
import threading
from collections import deque

from longhaul.core.units import Bytes, Seconds

_QUIET_STEPS = 32
"""Newest steps without a transfer, of which the median is what a step takes."""
_FEWEST_QUIET = 5
_BUSY_STEPS = 5
"""A verdict on a share is the median of so many steps made under it: one slow step, an
evaluation's cold caches, is no reason."""
_TOLERATED = 1.03
_LEAST_SHARE = 1 / 32
"""Never nothing: a checkpoint that is not sent at all protects nobody."""
_MOST_REGAINED = 1 / 8


class Pace:
    """Halves the share when steps grow more than 3 % slower, and gives it back in small parts.

    The rule of congestion control (additive increase, multiplicative decrease; Chiu and Jain,
    1989), with the step's time as its signal.

    Args:
        most_bytes_per_s: a ceiling whatever the step does; None for none.
    """

    def __init__(self, most_bytes_per_s: float | None = None) -> None:
        self._most_bytes_per_s = most_bytes_per_s
        self._quiet: deque[float] = deque(maxlen=_QUIET_STEPS)
        self._busy: list[float] = []
        self.share = 1.0
        """Share of its time that a transfer may work (0 to 1)."""

    def observe(self, seconds_per_token: float, transferring: bool) -> None:
        """Learn from a step.

        Args:
            seconds_per_token: its training time over its tokens, so that a batch that grows is
                no slowness.
            transferring: a transfer ran while it was made.
        """
        if not seconds_per_token > 0:
            return
        if not transferring:
            self._quiet.append(seconds_per_token)
            self._busy = []
            return
        if len(self._quiet) < _FEWEST_QUIET:
            return
        self._busy.append(seconds_per_token)
        if len(self._busy) < _BUSY_STEPS:
            return
        slower = statistics.median(self._busy) > _TOLERATED * statistics.median(self._quiet)
        if slower:
            self.share = max(_LEAST_SHARE, self.share / 2)
        else:
            self.share = min(1.0, self.share + _MOST_REGAINED)
        self._busy = []

    def pause_s(self, size_bytes: Bytes, took_s: Seconds) -> Seconds:
        """Seconds to rest after a piece of `size_bytes` that took `took_s`."""
        pause = took_s * (1 / self.share - 1)
        if self._most_bytes_per_s is not None:
            pause = max(pause, size_bytes / self._most_bytes_per_s - took_s)
        return pause


class TransferStopped(Exception):
    """The run ends: whatever is being transferred is left where it is."""


class Throttle:
    """Lets pieces through at the pace that the steps allow.

    Args:
        pace: the rule.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._stopping = threading.Event()
        self._under_way = 0
        self._passed = 0
        self._passed_before = 0
        self._lock = threading.Lock()

    @property
    def share(self) -> float:
        """Share of its time that a transfer may work now."""
        return self._pace.share

    def observe(self, seconds_per_token: float) -> None:
        """Learn from a step that has been made. Called by the training thread; never waits."""
        # A short transfer may have begun and ended within the step: then a piece has passed.
        transferring = self._under_way > 0 or self._passed != self._passed_before
        self._passed_before = self._passed
        self._pace.observe(seconds_per_token, transferring)

    def __enter__(self) -> "Throttle":
        """A transfer begins."""
        with self._lock:
            self._under_way += 1
        return self

    def __exit__(self, *_: object) -> None:
        """It ends, one way or the other."""
        with self._lock:
            self._under_way -= 1

    def rest(self, size_bytes: Bytes, took_s: Seconds) -> None:
        """After a piece: wait as long as the pace asks for.

        Raises:
            TransferStopped: the run ends.
        """
        self._passed += 1
        self.wait(self._pace.pause_s(size_bytes, took_s))

    def wait(self, seconds: Seconds) -> None:
        """Wait, but not longer than the run goes on.

        Raises:
            TransferStopped: the run ends.
        """
        if self._stopping.wait(seconds) if seconds > 0 else self._stopping.is_set():
            raise TransferStopped

    def stop(self) -> None:
        """The run ends: nobody waits any more."""
        self._stopping.set()
