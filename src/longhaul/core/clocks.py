"""Time as a thing passed in, so that an hour passes in a microsecond of test.

Enters: nothing. Leaves: seconds. Never knows: who asks.
"""

import time
from typing import Protocol

import psutil

from longhaul.core.units import Seconds


class Clock(Protocol):
    """What every stage that measures or judges time takes as an argument."""

    def wall(self) -> Seconds:
        """Seconds since 1970, comparable between machines and restarts."""
        ...

    def monotonic(self) -> Seconds:
        """Seconds that never run backwards, comparable within one process."""
        ...


class RealClock:
    """The machine's own clocks."""

    def wall(self) -> Seconds:
        """Seconds since 1970."""
        return time.time()

    def monotonic(self) -> Seconds:
        """Seconds from an arbitrary start."""
        return time.monotonic()


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, now: Seconds = 1_000_000.0) -> None:
        self._now = now

    def wall(self) -> Seconds:
        """The time that was set."""
        return self._now

    def monotonic(self) -> Seconds:
        """The time that was set."""
        return self._now

    def advance(self, seconds: Seconds) -> None:
        """Let `seconds` pass."""
        self._now += seconds


def process_start() -> Seconds:
    """When this process was started, in seconds since 1970, by the clock that records are timed by.

    Linux tells the start in ticks since boot. psutil adds them to a time of boot that is a whole
    number of seconds, so that a process would seem up to a second older than it is.
    """
    created: Seconds = psutil.Process().create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return created
    since_boot: Seconds = created - psutil.boot_time()
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)
