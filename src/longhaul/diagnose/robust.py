"""Robust statistics over a sliding window, in plain Python.

Enters: finite numbers one by one. Leaves: medians, spreads, trends.
Never knows: what the numbers are about. Who feeds it keeps NaN and flagged values out.

The robust standard deviation is 1.4826 · the median of |x − median|, which is σ for normal x.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

SIGMA_PER_MAD = 1.4826


class Window:
    """The last `size` values, also in sorted order."""

    def __init__(self, size: int) -> None:
        self.values: deque[float] = deque()
        self._sorted: list[float] = []
        self._size = size

    def __len__(self) -> int:
        return len(self.values)

    def push(self, value: float) -> None:
        """Take a value in; the oldest falls out of a full window."""
        if len(self.values) == self._size:
            oldest = self.values.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self.values.append(value)
        insort(self._sorted, value)

    def clear(self) -> None:
        """Forget every value."""
        self.values.clear()
        self._sorted.clear()

    @property
    def median(self) -> float:
        """NaN while empty."""
        count = len(self._sorted)
        if not count:
            return math.nan
        half = count // 2
        return (
            self._sorted[half] if count % 2 else (self._sorted[half - 1] + self._sorted[half]) / 2
        )

    @property
    def largest(self) -> float:
        """−inf while empty."""
        return self._sorted[-1] if self._sorted else -math.inf

    @property
    def deviation(self) -> float:
        """Robust standard deviation; NaN while empty."""
        middle = self.median
        values = [abs(value - middle) for value in self._sorted]
        return SIGMA_PER_MAD * median(values) if values else math.nan


class Baseline:
    """The level of a noisy, drifting signal, and how far above it is unheard of.

    The level is the median of the last few accepted values, so that a fall or a slow rise is
    followed. The spread is that of differences of values a few apart, which no fall of the curve
    widens; distances from the level tell what was heard of. A value that was flagged stays out
    of all, until so many come in a row that they are a new level.

    Args:
        spread_size: accepted values whose distances make the spread.
        new_level_after: flagged values in a row that are taken for a new level.
    """

    level_size = 16
    """Short beside the curve of a loss, long beside its noise."""
    least_spread = 24
    """Distances needed before anything is judged; the first steps of a run pass unjudged."""
    least_level = 8
    """Accepted values needed after the level was forgotten; also the distance of the values whose
    differences make the spread: neighbours may hang together."""
    beyond_history = 1.5
    """A value is unheard of only if it exceeds the largest distance in the window by this factor:
    noise with heavy tails, as small batches make, stays within its own history."""

    def __init__(self, spread_size: int, new_level_after: int) -> None:
        self._levels = Window(self.level_size)
        self._distances = Window(spread_size)
        self._gaps = Window(spread_size // 2)
        self._flagged: list[float] = []
        self._new_level_after = new_level_after

    @property
    def level(self) -> float:
        """Median of the last accepted values; NaN before the first."""
        return self._levels.median

    @property
    def deviation(self) -> float:
        """Robust standard deviation of accepted values about their curve."""
        return self._gaps.deviation / math.sqrt(2)

    def recentre(self) -> None:
        """Forget the level, keep the spread: a scheduled change has moved the signal."""
        self._levels.clear()
        self._flagged.clear()

    def is_unheard_of(self, value: float, deviations: float, floor: float) -> bool:
        """`value` lies above the level by more than `deviations`, and more than ever lately.

        Args:
            value: finite.
            deviations: in robust standard deviations.
            floor: least standard deviation to reckon with.
        """
        if len(self._levels) < self.least_level or len(self._distances) < self.least_spread:
            return False
        distance = value - self.level
        if distance <= deviations * floor:
            return False
        if distance <= self.beyond_history * self._distances.largest:
            return False
        return distance > deviations * self.deviation

    def learn(self, value: float, flagged: bool) -> None:
        """Take the value in, or hold it back while it is flagged."""
        if flagged:
            self._flagged.append(value)
            if len(self._flagged) < self._new_level_after:
                return
            accepted, self._flagged = self._flagged, []
            self._levels.clear()
            for held in accepted:
                self._levels.push(held)
            return
        self._flagged.clear()
        if len(self._levels) >= self.least_level:
            self._gaps.push(value - self._levels.values[-self.least_level])
            self._distances.push(value - self.level)
        self._levels.push(value)


class Trend(NamedTuple):
    """How a series moves over time."""

    slope: float
    """Theil–Sen: the median slope of all pairs."""
    concordance: float
    """Kendall's tau: share of pairs that rise less the share that fall, −1 to 1."""
    deviation: float
    """Robust standard deviation of the values about that slope."""


def trend(times: Sequence[float], values: Sequence[float]) -> Trend:
    """Robust trend of `values` over rising `times` (Sen 1968); at least two of each."""
    slopes = [
        (values[later] - values[earlier]) / (times[later] - times[earlier])
        for later in range(1, len(values))
        for earlier in range(later)
    ]
    rising = sum(slope > 0 for slope in slopes) - sum(slope < 0 for slope in slopes)
    slope = median(slopes)
    level = [value - slope * time for time, value in zip(times, values, strict=True)]
    middle = median(level)
    deviation = SIGMA_PER_MAD * median(abs(value - middle) for value in level)
    return Trend(slope, rising / len(slopes), deviation)
