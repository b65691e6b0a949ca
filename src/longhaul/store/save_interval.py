"""An interval between saves that is `auto`: measured here, chosen by `store/interval.py`.

Enters: records of steps and of saves. Leaves: another number of steps, now and then.
Never knows: how saves are made.
"""

from collections import deque
from collections.abc import Callable, Iterable

from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Seconds
from longhaul.store.interval import Interval, Measured, best_interval, next_interval

_NEWEST_SAVES = 5
_NEWEST_STEPS = 100


class SaveInterval:
    """Chooses the interval of one attempt.

    Args:
        past: gives the events of the run before this attempt, in which failures are counted; it
            is asked only if the interval is `auto`.
        devices: that train.
        clock: for how long this attempt has lasted.
    """

    def __init__(self, past: Callable[[], Iterable[Record]], devices: int, clock: Clock) -> None:
        self._devices = devices
        self._clock = clock
        self._began = clock.monotonic()
        self._stalls_s: deque[Seconds] = deque(maxlen=_NEWEST_SAVES)
        self._saves_s: deque[Seconds] = deque(maxlen=_NEWEST_SAVES)
        self._steps_s: deque[Seconds] = deque(maxlen=_NEWEST_STEPS)
        self._current: int | None = None
        self._news = True
        self._past = past
        self._before: tuple[int, Seconds] | None = None

    def observe(self, record: Record) -> None:
        """Learn what a step or a save took."""
        if isinstance(record, StepRecord):
            seconds = record.seconds
            if "compile" not in seconds:
                self._steps_s.append(seconds.get("training", 0.0) + seconds.get("redone", 0.0))
        elif isinstance(record, Event) and _is_verified(record):
            self._stalls_s.append(float(record.data.get("stall_s", 0.0)))
            self._saves_s.append(float(record.data.get("seconds_since_save", 0.0)))
            self._news = True

    def changed(self, settings: Recipe) -> Interval | None:
        """The interval to take from now on; None to stay with the current one.

        Judged after each save: nothing else brings news of what one costs.
        """
        if settings.checkpoint.interval_steps != "auto":
            self._current, self._news = None, True
            return None
        if not self._news:
            return None
        self._news = False
        if self._before is None:
            self._before = _failures(self._past())
        failures, before_s = self._before
        best = best_interval(
            Measured(
                stalls_s=tuple(self._stalls_s),
                saves_s=tuple(self._saves_s),
                steps_s=tuple(self._steps_s),
                failures=failures,
                uptime_s=before_s + self._clock.monotonic() - self._began,
                devices=self._devices,
            )
        )
        new = next_interval(self._current, best)
        self._current = new.steps if new else self._current
        return new


def _is_verified(event: Event) -> bool:
    return event.kind == "checkpoint" and event.data.get("health") == "verified"


def _failures(past: Iterable[Record]) -> tuple[int, Seconds]:
    """How many attempts failed, as their supervisor tells or because they ended without a word;
    and the time over all of them.
    """
    failures, uptime_s = 0, 0.0
    begun: Seconds | None = None
    last = 0.0
    for record in past:
        if isinstance(record, Event) and record.kind == "attempt-started":
            if begun is not None:
                failures += 1
                uptime_s += last - begun
            begun = record.time
        elif isinstance(record, Event) and record.kind == "attempt-ended":
            failures += "cause" in record.data
            uptime_s += 0.0 if begun is None else record.time - begun
            begun = None
        last = record.time
    if begun is not None:
        failures += 1
        uptime_s += last - begun
    return failures, uptime_s
