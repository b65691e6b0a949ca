"""Time as a thing passed in, so that an hour passes in a microsecond of test, and its accounting:
every second of a run belongs to exactly one bucket.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Literal, Protocol, get_args

import psutil

from longhaul.core.events import EventKind
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Seconds


class Clock(Protocol):
    """What measures or judges time takes one of these as an argument."""

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


def process_start() -> Seconds:
    """When this process started, in seconds since 1970, by the clock that records are timed by."""
    created: Seconds = psutil.Process().create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return created
    since_boot: Seconds = created - psutil.boot_time()
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot)


Bucket = Literal[
    "prepare",  # reading text, training a tokenizer, writing shards
    "start-up",  # from the start of the process to its first step
    "restart",  # the same after a failure; a rollback
    "compile",
    "training",
    "data_wait",
    "checkpoint_stall",
    "evaluation",
    "redone",  # training that an earlier attempt had already done and lost
    "detection",  # from a failure to its being noticed (booked by the supervisor); comparing ranks
    "idle",  # nobody was running this run
]
BUCKETS: tuple[Bucket, ...] = get_args(Bucket)


class TimeBuckets:
    """Books the seconds of one process: to `bucket` at first, and at once those that were spent
    `already`, such as on imports. `watcher` is told each bucket that is opened in place of another,
    and the open one again where that takes long.
    """

    def __init__(
        self,
        clock: Clock,
        bucket: Bucket = "start-up",
        already: Seconds = 0.0,
        watcher: Callable[[Bucket], None] | None = None,
    ) -> None:
        self._clock = clock
        self._watcher = watcher
        self._bucket: Bucket = bucket
        self._since = clock.monotonic()
        self._seconds: dict[Bucket, Seconds] = {bucket: already} if already else {}

    def watch(self, watcher: Callable[[Bucket], None]) -> None:
        """Tell `watcher` from now on which bucket is opened, and now which is open."""
        self._watcher = watcher
        watcher(self._bucket)

    def alive(self) -> None:
        """Tell the watcher once more which bucket is open, from within what takes long."""
        if self._watcher is not None:
            self._watcher(self._bucket)

    def alive_after(self, first: Bucket) -> Callable[[], None]:
        """`alive`, but what follows its first call is booked to `first`, up to its second one."""
        buckets = chain((first,), repeat(self._bucket))

        def alive() -> None:
            self.switch(next(buckets))
            self.alive()

        return alive

    def switch(self, bucket: Bucket) -> Bucket:
        """Close the open bucket, open `bucket`, and return the one that was open."""
        now = self._clock.monotonic()
        self._seconds[self._bucket] = self._seconds.get(self._bucket, 0.0) + now - self._since
        previous, self._bucket, self._since = self._bucket, bucket, now
        if self._watcher is not None and bucket != previous:
            self._watcher(bucket)
        return previous

    @contextmanager
    def track(self, bucket: Bucket) -> Iterator[None]:
        """Book the body to `bucket`, then go back to the bucket that was open."""
        previous = self.switch(bucket)
        try:
            yield
        finally:
            self.switch(previous)

    def add(self, bucket: Bucket, seconds: Seconds) -> None:
        """Book seconds that passed outside this process, such as idle time before a restart."""
        self._seconds[bucket] = self._seconds.get(bucket, 0.0) + seconds

    def drain(self) -> dict[str, Seconds]:
        """Seconds per bucket since the last call; empty buckets are left out."""
        self.switch(self._bucket)
        drained, self._seconds = self._seconds, {}
        return {bucket: round(seconds, 6) for bucket, seconds in drained.items() if seconds > 0}


def goodput(seconds: Mapping[str, Seconds]) -> float:
    """Share of wall time spent on training that was kept (0 to 1)."""
    total = sum(seconds.values())
    return seconds.get("training", 0.0) / total if total else float("nan")


STEP_BUCKETS: tuple[Bucket, ...] = ("training", "redone", "data_wait")
"""What a step itself takes; evaluation, saving and compilation are booked apart from it."""


def time_spent(records: Iterable[Record]) -> dict[str, Seconds]:
    """Bucket → seconds, summed over steps and events of every attempt."""
    spent: dict[str, Seconds] = {}
    for record in records:
        for bucket, seconds in _booked(record).items():
            spent[bucket] = spent.get(bucket, 0.0) + seconds
    return spent


def start_bucket(records: Iterable[Record]) -> Bucket:
    """What the next start is booked to: `restart` after an attempt, in `records`, that ended with a
    cause or left no word of its end; else `start-up`.
    """
    bucket: Bucket = "start-up"
    for event in records:
        if not isinstance(event, Event):
            continue
        if event.kind == EventKind.ATTEMPT_STARTED:
            bucket = "restart"  # until its end is told
        elif event.kind in (EventKind.ATTEMPT_ENDED, EventKind.FINISHED):
            bucket = "restart" if "cause" in event.data else "start-up"
    return bucket


def wall_seconds(records: Iterable[Record]) -> Seconds:
    """Time from the start of the run's first process, which is the earliest of a record's time
    minus its seconds, to its last record; what `time_spent` adds up to.
    """
    begin, end = float("inf"), float("-inf")
    for record in records:
        begin = min(begin, record.time - sum(_booked(record).values()))
        end = max(end, record.time)
    return max(end - begin, 0.0)


def tokens_per_second(record: StepRecord) -> float:
    """Target tokens of the global batch over the seconds of `STEP_BUCKETS`; NaN if none passed."""
    seconds = sum(record.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS)
    return record.tokens / seconds if seconds > 0 else float("nan")


def _booked(record: Record) -> Mapping[str, Seconds]:
    return record.seconds if isinstance(record, StepRecord | Event) else {}
