"""How often to save: where what saving costs the training thread, and the half interval that a
failure on average makes again, add up to least.

J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future
Generation Computer Systems 22(3), 2006, equation 37.
"""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.events import EventKind
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Seconds, short_seconds

UNMEASURED_STEPS = 250
"""Until a save and some steps have been timed: the default of `checkpoint.interval_steps`."""
PRIOR_S: Seconds = 15_000 * 3600.0
"""Device time to a failure before any was seen. OPT-175B: about 105 restarts in two months on 992
GPUs, one in 14,000 device hours; Llama 3: 419 in 54 days on 16,384, one in 51,000."""
_FEWEST_STEPS = 5
_CHANGED = 0.2
"""An interval that would change by less stays: its best is flat, and a change is a record."""


@dataclass(frozen=True, slots=True)
class Interval:
    """How many steps to make between saves."""

    steps: int
    reason: str


def daly_interval(cost_s: Seconds, between_failures_s: Seconds) -> Seconds:
    """Seconds of training between two saves that lose the least time; both arguments above 0."""
    if cost_s >= 2 * between_failures_s:
        return between_failures_s
    ratio = cost_s / (2 * between_failures_s)
    first_order = math.sqrt(2 * cost_s * between_failures_s)
    return first_order * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def between_failures(failures: int, uptime_s: Seconds, devices: int) -> Seconds:
    """Mean time between failures: the prior counts as one failure that was seen."""
    return (PRIOR_S / devices + uptime_s) / (1 + failures)


def best_interval(
    *,
    stalls_s: Iterable[Seconds] = (),
    saves_s: Iterable[Seconds] = (),
    steps_s: Iterable[Seconds] = (),
    failures: int = 0,
    uptime_s: Seconds = 0.0,
    devices: int = 1,
) -> Interval:
    """The interval that loses the least time, as far as is known.

    Args:
        stalls_s: what the newest saves cost the training thread.
        saves_s: how long they took in all, read-back included.
        steps_s: what the newest steps took.
        failures: unplanned ends of attempts so far.
        uptime_s: time over all attempts in which they might have failed.
        devices: that train together.
    """
    stalls = [s for s in stalls_s if math.isfinite(s) and s >= 0]
    steps = [s for s in steps_s if math.isfinite(s) and s > 0]
    if not stalls or len(steps) < _FEWEST_STEPS:
        return Interval(UNMEASURED_STEPS, "no save has been timed yet")
    step_s, stall_s = statistics.median(steps), statistics.median(stalls)
    mean_s = between_failures(failures, uptime_s, devices)
    # A clock may show 0 for what takes next to nothing; saving at every step is the limit then.
    wanted = daly_interval(stall_s, mean_s) / step_s if stall_s > 0 else 1.0
    saves = [s for s in saves_s if math.isfinite(s) and s >= 0]
    # A save that is due while the one before it is written would be waited for.
    possible = math.ceil(statistics.median(saves) / step_s) + 1 if saves else 1
    count = max(1, possible, round(wanted))
    seen = f"{failures} failures" if failures else "no failure yet"
    reason = (
        f"a save costs {stall_s:.3g} s of a step's {step_s:.3g} s, {seen}: one failure in "
        f"{short_seconds(mean_s)} expected"
    )
    if saves and count > round(wanted):
        reason += f"; not sooner, because a save takes {short_seconds(statistics.median(saves))}"
    return Interval(count, reason)


_NEWEST_SAVES = 5
_NEWEST_STEPS = 100


class SaveInterval:
    """Chooses the interval of one attempt on so many devices; failures are counted in the `history`
    of the run before it, which is read only if the interval is `auto`.
    """

    def __init__(self, history: Callable[[], Iterable[Record]], devices: int, clock: Clock) -> None:
        self._devices = devices
        self._clock = clock
        self._began = clock.monotonic()
        self._stalls_s: deque[Seconds] = deque(maxlen=_NEWEST_SAVES)
        self._saves_s: deque[Seconds] = deque(maxlen=_NEWEST_SAVES)
        self._steps_s: deque[Seconds] = deque(maxlen=_NEWEST_STEPS)
        self._current: int | None = None
        self._news = True
        self._history = history
        self._before: tuple[int, Seconds] | None = None

    def observe(self, record: Record) -> None:
        """Learn what a step or a save took."""
        if isinstance(record, StepRecord):
            seconds = record.seconds
            if "compile" not in seconds:
                self._steps_s.append(seconds.get("training", 0.0) + seconds.get("redone", 0.0))
        elif isinstance(record, Event) and record.kind == EventKind.CHECKPOINT:
            if record.data.get("health") != "verified":
                return
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
            self._before = _failures(self._history())
        failures, before_s = self._before
        best = best_interval(
            stalls_s=self._stalls_s,
            saves_s=self._saves_s,
            steps_s=self._steps_s,
            failures=failures,
            uptime_s=before_s + self._clock.monotonic() - self._began,
            devices=self._devices,
        )
        now = self._current
        if now is not None and abs(best.steps - now) <= _CHANGED * now:
            return None
        self._current = best.steps
        return best


def _failures(history: Iterable[Record]) -> tuple[int, Seconds]:
    """How many attempts failed, as far as is known, and the time over all of them."""
    failures, uptime_s = 0, 0.0
    begun: Seconds | None = None
    last = 0.0
    for record in history:
        if isinstance(record, Event) and record.kind == EventKind.ATTEMPT_STARTED:
            if begun is not None:
                failures += 1
                uptime_s += last - begun
            begun = record.time
        elif isinstance(record, Event) and record.kind == EventKind.ATTEMPT_ENDED:
            failures += "cause" in record.data
            uptime_s += 0.0 if begun is None else record.time - begun
            begun = None
        last = record.time
    if begun is not None:
        failures += 1
        uptime_s += last - begun
    return failures, uptime_s
