"""How fast transfers may go: as fast as they like, until the step grows slower for it.

Enters: the time of each step, and whether a transfer ran beside it. Leaves: the share of its
time that a transfer may work, and the pauses that follow from it.
Never knows: threads, clocks, or what is transferred.
"""

import statistics
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
