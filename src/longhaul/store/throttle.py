"""One pace for all transfers of a run, shared between the threads that transfer.

Enters: step times from the training thread; pieces from those that transfer.
Leaves: rests between pieces, which end at once when the run does.
Never knows: stores, or files.
"""

import threading

from longhaul.core.units import Bytes, Seconds
from longhaul.store.pace import Pace


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
