"""Robust statistics over a sliding window, and the loss of a whole run in a few hundred blocks."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

SIGMA_PER_MAD = 1.4826


class Window:
    """The last `size` values, also in sorted order.

    The robust standard deviation is 1.4826 · the median of |x − median|, which is σ for normal x.
    """

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
        middle = self._sorted[(count - 1) // 2 : count // 2 + 1]
        return sum(middle) / len(middle) if count else math.nan

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


_ALIKE = 0.9
"""Bends of neighbours over bends of values apart, from which on these do not hang together: of a
hundred values each, chance alone makes a tenth."""
_UNKNOWN = 0.8
"""Correlation of neighbours to reckon with until it is known."""


class Noise:
    """How far values lie from the course of their neighbours, by chance.

    Told from bends, v(t) − 2·v(t−k) + v(t−2k), in which level and trend cancel: a curve that falls
    ever more slowly, as that of a young run, widens them less than it widens plain differences. So
    many bends are remembered as the `size` says.
    """

    apart = 8
    """k: neighbours may hang together."""
    least_bends = 24
    """Bends needed to tell whether they do."""

    def __init__(self, size: int) -> None:
        self._history: deque[float] = deque(maxlen=2 * self.apart)
        self._bends = Window(size)
        self._near_bends = Window(size)
        self._enough = size // 2
        self._least = 0.0  # what it was with other values, until enough of these are known

    def push(self, value: float) -> None:
        """Take the next value in."""
        history = self._history
        if len(history) == 2 * self.apart:
            self._bends.push(value - 2 * history[self.apart] + history[0])
            self._near_bends.push(value - 2 * history[-1] + history[-2])
            if len(self._bends) >= self._enough:
                self._least = 0.0
        history.append(value)

    def cut(self) -> None:
        """The next value does not go on from the last."""
        self._history.clear()

    def renew(self) -> None:
        """Values of another kind follow: learn anew, and reckon with no less until that is done."""
        if self._bends:
            self._least = self.deviation
        self._history.clear()
        self._bends.clear()
        self._near_bends.clear()

    @property
    def deviation(self) -> float:
        """Robust standard deviation of a value about the curve; infinite before the first bend."""
        if not self._bends:
            return self._least or math.inf
        # A bend has six times the variance of its terms.
        return max(self._least, self._bends.deviation / math.sqrt(6))

    def of_median(self, count: int) -> float:
        """That of the median of `count` values in a row: √(π/2n) of theirs, where n is the number
        of independent ones that say as much (Bayley and Hammersley 1946, for an AR(1) process).
        """
        correlation = self._correlation
        independent = max(1.0, count * (1 - correlation) / (1 + correlation))
        return self.deviation * math.sqrt(math.pi / 2 / independent)

    @property
    def _correlation(self) -> float:
        # Where neighbours hang together, their bends are narrower than those of values apart; for
        # an AR(1) process the ratio of variances is 1 − 4ρ/3 + ρ²/3.
        if len(self._bends) < self.least_bends:
            return _UNKNOWN
        apart, near = self._bends.deviation, self._near_bends.deviation
        alike = min(1.0, near / apart / _ALIKE) if apart else 1.0
        return 2 - math.sqrt(1 + 3 * alike * alike)


class Baseline:
    """The level of a noisy, drifting signal, and how far above it is unheard of.

    The level is the median of the last few accepted values, so that a fall or a slow rise is
    followed. The spread is that of values about their curve (`Noise`); distances from the level
    tell what was heard of, those of `spread_size` accepted values. A value that was flagged stays
    out of all, until `new_level_after` in a row are a new level.
    """

    level_size = 16
    """Short beside the curve of a loss, long beside its noise."""
    least_spread = 24
    """Distances needed before anything is judged; the first steps of a run pass unjudged."""
    least_level = 8
    """Accepted values needed after the level was forgotten."""
    beyond_history = 1.5
    """A value is unheard of only if it exceeds the largest distance in the window by this factor:
    noise with heavy tails, as small batches make, stays within its own history."""

    def __init__(self, spread_size: int, new_level_after: int) -> None:
        self._levels = Window(self.level_size)
        self._distances = Window(spread_size)
        self.noise = Noise(3 * spread_size // 4)
        self._flagged: list[float] = []
        self._new_level_after = new_level_after

    @property
    def level(self) -> float:
        """Median of the last accepted values; NaN before the first."""
        return self._levels.median

    def recentre(self) -> None:
        """Forget the level: a scheduled change has moved the signal."""
        self._levels.clear()
        self.noise.renew()
        self._flagged.clear()

    def is_beyond_history(self, value: float) -> bool:
        """`value` lies further above the level than any did lately."""
        if len(self._levels) < self.least_level or len(self._distances) < self.least_spread:
            return False
        return value - self.level > self.beyond_history * self._distances.largest

    def is_unheard_of(self, value: float, deviations: float, floor: float) -> bool:
        """The same, and by more than so many robust standard deviations, each at least `floor`."""
        distance = value - self.level
        if not distance > deviations * floor or not self.is_beyond_history(value):
            return False
        return distance > deviations * self.noise.deviation

    def learn(self, value: float, flagged: bool) -> None:
        """Take the value in, or hold it back while it is flagged."""
        if flagged:
            self._flagged.append(value)
            if len(self._flagged) < self._new_level_after:
                return
            self._levels.clear()
            self.noise.cut()
            while self._flagged:
                self._levels.push(self._flagged.pop(0))
            return
        self._flagged.clear()
        self.noise.push(value)
        if len(self._levels) >= self.least_level:
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


_STEPS_PER_BLOCK = 8
_BLOCKS = 256


class Levels:
    """Median losses of blocks of steps; blocks are merged in pairs whenever there are too many."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._blocks: list[float] = []
        self._steps = _STEPS_PER_BLOCK
        self._losses: list[float] = []
        self._begin = 0

    def push(self, step: int, loss: float) -> bool:
        """Take a finite loss in; true if that completed a block."""
        if not self._losses:
            self._begin = step
        self._losses.append(loss)
        if len(self._losses) < self._steps:
            return False
        self._begins.append(self._begin)
        self._blocks.append(median(self._losses))
        self._losses.clear()
        if len(self._blocks) >= _BLOCKS:
            pairs = range(0, _BLOCKS, 2)
            self._blocks = [(self._blocks[i] + self._blocks[i + 1]) / 2 for i in pairs]
            self._begins = self._begins[::2]
            self._steps *= 2
        return True

    @property
    def begin(self) -> float:
        """First step that is known; infinity before the first block."""
        return self._begins[0] if self._begins else math.inf

    @property
    def first(self) -> float:
        """Level of the first block; NaN before it."""
        return self._blocks[0] if self._blocks else math.nan

    @property
    def last(self) -> float:
        """Level of the last block; NaN before the first."""
        return self._blocks[-1] if self._blocks else math.nan

    def between(self, begin: float, end: float) -> float:
        """Level of the blocks that begin within these steps; NaN if there is none."""
        blocks = zip(self._begins, self._blocks, strict=True)
        inside = [level for first, level in blocks if begin <= first < end]
        return median(inside) if inside else math.nan

    def before(self, step: float) -> float:
        """Level of the last tenth of the steps up to `step`, at least of two blocks."""
        length = max((step - self.begin) / 10, 2 * self._steps + 1)
        return self.between(step - length, step)

    @property
    def noise(self) -> float:
        """Robust standard deviation of one block's level about its neighbours' (0 if unknown)."""
        recent = self._blocks[-32:]
        jumps = [abs(later - earlier) for earlier, later in pairwise(recent)]
        return SIGMA_PER_MAD * median(jumps) / math.sqrt(2) if jumps else 0.0
