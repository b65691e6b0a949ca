"""Where the time of a run went, from the seconds that its records carry (DESIGN rule 11).

Enters: records. Leaves: seconds per bucket, wall time, tokens per second.
Never knows: what a bucket is good for.
"""

from collections.abc import Iterable, Mapping

from longhaul.core.books import Bucket
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Seconds

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
    """What the next start is booked to: `restart` after a failure, else `start-up`.

    An attempt has failed that ended with a cause, or left no word of its end.

    Args:
        records: events of the attempts before it, in order.
    """
    bucket: Bucket = "start-up"
    for record in records:
        if isinstance(record, Event) and record.kind == "attempt-started":
            bucket = "restart"  # until its end is told
        elif isinstance(record, Event) and record.kind in ("attempt-ended", "finished"):
            bucket = "restart" if "cause" in record.data else "start-up"
    return bucket


def wall_seconds(records: Iterable[Record]) -> Seconds:
    """Time from the start of the run's first process to its last record.

    A record's seconds end at its time, so the earliest of time − seconds is that start. What is
    summed by `time_spent` adds up to this, because the time between attempts is booked (as idle)
    by the attempt that follows.
    """
    begin, end = float("inf"), float("-inf")
    for record in records:
        begin = min(begin, record.time - sum(_booked(record).values()))
        end = max(end, record.time)
    return max(end - begin, 0.0)


def tokens_per_second(record: StepRecord) -> float:
    """Target tokens of the global batch over the seconds of `STEP_BUCKETS`; NaN if none passed.

    These are wall seconds since the step before was seen complete. Steps seen complete together
    (DESIGN rule 3) share them by what the device took for each (`train/completed.py`).
    """
    seconds = sum(record.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS)
    return record.tokens / seconds if seconds > 0 else float("nan")


def _booked(record: Record) -> Mapping[str, Seconds]:
    return record.seconds if isinstance(record, StepRecord | Event) else {}
