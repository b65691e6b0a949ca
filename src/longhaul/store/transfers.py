"""Limits on transfers: a deadline for each file, pauses between attempts, and a pace.

A call into a file system that hangs cannot be interrupted: it is made on a thread of its own, which
is left behind when its time is up. All transfers of a run share one pace.
"""

import random
import statistics
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TypeVar

from longhaul.core.clocks import Clock
from longhaul.core.errors import LonghaulError
from longhaul.core.faults import Point, point
from longhaul.core.units import Bytes, Seconds, short_seconds

T = TypeVar("T")

_MOST_STUCK = 8
"""Calls that may be stuck at once, or a store that hangs would pile up threads and sockets."""


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
        """Seconds to wait after so many failures in a row, spread over ± 25 %, so that a thousand
        runs do not come back at once to a store that has just recovered.
        """
        # The exponent is bounded because a store may be away for a week.
        pause = self.first_pause_s * 2.0 ** min(max(failures - 1, 0), 32)
        return min(pause, self.longest_pause_s) * (0.75 + 0.5 * chance())


class Calls:
    """Calls into one store, each on a thread that can be left behind."""

    def __init__(self) -> None:
        self._stuck: list[threading.Thread] = []

    def within(self, most_s: Seconds, what: str, call: Callable[[], T]) -> T:
        """The result of `call`, or what it raises, if it comes within `most_s` seconds; else, or if
        too many earlier calls have no answer, StoreError.
        """
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= _MOST_STUCK:
            raise StoreError(f"{what}: {len(self._stuck)} earlier calls still have no answer")
        done: Future[T] = Future()

        def run() -> None:
            try:
                point(Point.STORE_CALL, what)
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001 (raised again by whoever waits)
                done.set_exception(error)

        thread = threading.Thread(target=run, name=f"store: {what}", daemon=True)
        thread.start()
        if not wait([done], max(0.0, most_s)).done:
            self._stuck.append(thread)
            raise StoreError(f"{what}: no answer within {short_seconds(most_s)}")
        return done.result()


class Deadline:
    """The seconds that one file, `what`, may keep a store busy in all, pauses not counted."""

    def __init__(self, calls: Calls, most_s: Seconds, what: str, clock: Clock) -> None:
        self._calls = calls
        self._left_s = most_s
        self._most_s = most_s
        self._what = what
        self._clock = clock

    def call(self, call: Callable[[], T]) -> T:
        """As `Calls.within` what is left of the time."""
        if self._left_s <= 0:
            raise StoreError(f"{self._what}: not done within {short_seconds(self._most_s)}")
        began = self._clock.monotonic()
        try:
            return self._calls.within(self._left_s, self._what, call)
        finally:
            self._left_s -= self._clock.monotonic() - began


_QUIET_STEPS = 32
"""Newest steps without a transfer, of which the median is what a step takes."""
FEWEST_QUIET = 5
_BUSY_STEPS = 5
"""A verdict on a share is the median of so many steps made under it: one slow step, an
evaluation's cold caches, is no reason."""
_TOLERATED = 1.03
LEAST_SHARE = 1 / 32
"""Never nothing: a checkpoint that is not sent at all protects nobody."""
_MOST_REGAINED = 1 / 8
_LOOK_EVERY_S: Seconds = 0.25


class Pace:
    """Halves the share when steps grow more than 3 % slower, and gives it back in small parts.

    The rule of congestion control (additive increase, multiplicative decrease; Chiu and Jain,
    1989), with the step's time as its signal, below a ceiling of `most_bytes_per_s`.
    """

    def __init__(self, most_bytes_per_s: float | None = None) -> None:
        self._most_bytes_per_s = most_bytes_per_s
        self._quiet: deque[float] = deque(maxlen=_QUIET_STEPS)
        self._busy: list[float] = []
        self.share = 1.0
        """Share of its time that a transfer may work (0 to 1); at 0 it waits."""

    def observe(self, seconds_per_token: float, transferring: bool) -> None:
        """Learn a step's training time per token, and whether a transfer ran meanwhile."""
        if not seconds_per_token > 0:
            return
        if not transferring:
            self._quiet.append(seconds_per_token)
            self._busy = []
            return
        if len(self._quiet) < FEWEST_QUIET:
            return
        self._busy.append(seconds_per_token)
        if len(self._busy) < _BUSY_STEPS:
            return
        if statistics.median(self._busy) > _TOLERATED * statistics.median(self._quiet):
            self.share = max(LEAST_SHARE, self.share / 2)
        else:
            self.share = min(1.0, self.share + _MOST_REGAINED)
        self._busy = []

    def pause_s(self, size_bytes: Bytes, took_s: Seconds, streams: int = 1) -> Seconds:
        """Seconds to rest after a piece of `size_bytes` that took `took_s`, while so many `streams`
        share the ceiling. Half the share halves the ceiling too: a transfer that it holds far below
        what the link can do must become slower as well.
        """
        share = max(self.share, LEAST_SHARE)
        pause = took_s * (1 / share - 1)
        if self._most_bytes_per_s is not None:
            pause = max(pause, size_bytes * streams / (self._most_bytes_per_s * share) - took_s)
        return pause


class TransferStopped(Exception):
    """The run ends: whatever is being transferred is left where it is."""


class Throttle:
    """Lets pieces through at the pace that the steps allow; a context around each transfer.

    `rest` and `wait` raise `TransferStopped` once the run ends.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace or Pace()
        self._stopping = threading.Event()
        self._under_way = 0
        self._passed = 0
        self._passed_before = 0
        self.passed_bytes: Bytes = 0
        """Read and written so far, what was read back included."""
        self._lock = threading.Lock()

    def observe(self, seconds_per_token: float) -> None:
        """Learn from a step that has been made. Called by the training thread; never waits."""
        # A short transfer may have begun and ended within the step: then a piece has passed.
        transferring = self._under_way > 0 or self._passed != self._passed_before
        self._passed_before = self._passed
        self._pace.observe(seconds_per_token, transferring)

    def __enter__(self) -> "Throttle":
        with self._lock:
            self._under_way += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._under_way -= 1

    def rest(self, size_bytes: Bytes, took_s: Seconds) -> None:
        """After a piece: wait as long as the pace asks for."""
        with self._lock:
            self._passed += 1
            self.passed_bytes += size_bytes
        self.wait(self._pace.pause_s(size_bytes, took_s, max(1, self._under_way)))
        while self._pace.share == 0:
            self.wait(_LOOK_EVERY_S)

    def yield_to(self, share: float) -> None:
        """Work for this share of the time from now on (`live_pace.py`); 0 waits for another."""
        self._pace.share = share

    def wait(self, seconds: Seconds) -> None:
        """Wait, but not longer than the run goes on."""
        if self._stopping.wait(seconds) if seconds > 0 else self._stopping.is_set():
            raise TransferStopped

    def stop(self) -> None:
        """The run ends: nobody waits any more."""
        self._stopping.set()
