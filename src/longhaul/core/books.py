"""The books of time: every second belongs to exactly one bucket (DESIGN rule 11).

Enters: "from now on this bucket". Leaves: seconds per bucket, adding up to wall time
by construction, because exactly one bucket is open at any moment.
Never knows: what the buckets are good for; goodput is computed by who reads them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Literal, get_args

from longhaul.core.clocks import Clock
from longhaul.core.units import Seconds

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


class TimeBooks:
    """Books the seconds of one process.

    Args:
        clock: monotonic time is taken from it.
        bucket: the bucket open at the start.
        already: seconds to book to that bucket at once, such as the time a process
            spent importing before these books were opened.
        watcher: told each bucket that is opened in place of another one, and the open one again
            where that takes long.
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
    def booked(self, bucket: Bucket) -> Iterator[None]:
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
