"""How long a store is waited for: a deadline for each file, and pauses between attempts.

A call into a file system that hangs cannot be interrupted. It is made on a thread of its own,
which is left behind when its time is up: it holds a socket, not the run.

Enters: calls, and the seconds they may take. Leaves: their results, or `StoreError`.
Never knows: what the calls do.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError
from longhaul.core.faults import Point, point
from longhaul.core.units import Bytes, Seconds, short_seconds

T = TypeVar("T")

_MOST_STUCK = 8
"""Calls that may be stuck at once; with more, a store that hangs for a day would pile up
threads and sockets."""


class StoreError(LonghaulError):
    """A store did not do what it was asked; later, or another one, may."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a store may take before it counts as hanging, and how soon it is tried again."""

    answer_s: Seconds = 60.0
    """For any single answer: a listing, a size, the opening of a file."""
    slowest_bytes_per_s: float = 1e6
    """A file may take `answer_s` and as long as its bytes take at this rate."""
    first_pause_s: Seconds = 2.0
    """Before the second attempt; each further pause is twice as long,"""
    longest_pause_s: Seconds = 300.0
    """up to this."""

    def deadline_s(self, size_bytes: Bytes) -> Seconds:
        """Seconds that a file of `size_bytes` may keep the store busy in all."""
        return self.answer_s + size_bytes / self.slowest_bytes_per_s

    def pause_s(self, failures: int, chance: Callable[[], float] = random.random) -> Seconds:
        """Seconds to wait after so many failures in a row.

        Spread over ± 25 %, so that a thousand runs do not come back to a store that has just
        recovered all at once.
        """
        # The exponent is bounded because a store may be away for a week.
        pause = self.first_pause_s * 2.0 ** min(max(failures - 1, 0), 32)
        return min(pause, self.longest_pause_s) * (0.75 + 0.5 * chance())


class Calls:
    """Calls into one store, each on a thread that can be left behind."""

    def __init__(self) -> None:
        self._stuck: list[threading.Thread] = []

    def within(self, most_s: Seconds, what: str, call: Callable[[], T]) -> T:
        """The result of `call`, which is given `most_s` seconds.

        Raises:
            StoreError: it has not come back in time, or too many others have not.
            Exception: whatever the call raises.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= _MOST_STUCK:
            raise StoreError(f"{what}: {len(self._stuck)} earlier calls still have no answer")
        results: list[T] = []
        failures: list[BaseException] = []

        def run() -> None:
            try:
                point(Point.STORE_CALL, what)
                results.append(call())
            except BaseException as error:  # noqa: BLE001 (raised again by whoever waits)
                failures.append(error)

        thread = threading.Thread(target=run, name=f"store: {what}", daemon=True)
        thread.start()
        thread.join(max(0.0, most_s))
        if failures:
            raise failures[0]
        if not results:
            self._stuck.append(thread)
            raise StoreError(f"{what}: no answer within {short_seconds(most_s)}")
        return results[0]


class Deadline:
    """The seconds that one file may keep a store busy; pauses in between do not count.

    Args:
        calls: of the store.
        most_s: seconds in all.
        what: names the file in an error.
        clock: for how long calls take.
    """

    def __init__(self, calls: Calls, most_s: Seconds, what: str, clock: Clock) -> None:
        self._calls = calls
        self._left_s = most_s
        self._most_s = most_s
        self._what = what
        self._clock = clock

    def call(self, call: Callable[[], T]) -> T:
        """The result of `call`, if it comes while there is time left.

        Raises:
            StoreError: the time is up.
            Exception: whatever the call raises.
        """
        if self._left_s <= 0:
            raise StoreError(f"{self._what}: not done within {short_seconds(self._most_s)}")
        began = self._clock.monotonic()
        try:
            return self._calls.within(self._left_s, self._what, call)
        finally:
            self._left_s -= self._clock.monotonic() - began
