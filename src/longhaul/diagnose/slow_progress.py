"""Slow progress: updates are too small to get anywhere (INCIDENTS N15).

Enters: step records with the gauge `update_ratio.matrix`. Leaves: a warning. Never knows: why the
learning rate is what it is.

Updates are too small if they are far below what is usual while the rate stands near its own peak,
or far below their own size before the rate was lowered at once (schedules lower it gradually).
Either counts only if the loss hardly falls; a model that is still about where it began is held to
stricter bounds, as its loss should fall steeply.
"""

import math

from longhaul.config.diagnose import SlowProgressLimits
from longhaul.core.records import StepRecord
from longhaul.diagnose.levels import Levels
from longhaul.diagnose.robust import Window
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_RATIO = "update_ratio.matrix"
_LEAST_STEPS = 100
_NEAR_PEAK = 0.5


class SlowProgress(Detector):
    """Judges gauge steps after warm-up."""

    def __init__(self, limits: SlowProgressLimits) -> None:
        self._limits = limits
        self._levels = Levels()
        self._ratios = Window(limits.readings)
        self._before_change = math.nan
        self._lowered: Mark | None = None
        self._rate = self._peak_rate = 0.0
        self._first: Mark | None = None
        self._warm_from = 0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Hold the size of updates against what is usual and what was usual here."""
        if changed == "data":
            self._levels = Levels()
        if changed == "rate":
            self._note_jump(record)
        self._rate = record.learning_rate
        self._peak_rate = max(self._peak_rate, record.learning_rate)
        if math.isfinite(record.loss):
            self._levels.push(record.step, record.loss)
        if record.warmup:
            self._warm_from = record.step
        ratio = record.totals.get(_RATIO, math.nan)
        if not math.isfinite(ratio) or record.masked:
            return None
        self._ratios.push(ratio)
        if record.warmup or record.step < _LEAST_STEPS or len(self._ratios) < self._limits.readings:
            return None
        return self._judge(record, self._ratios.median)

    def _note_jump(self, record: StepRecord) -> None:
        if record.learning_rate < self._rate:
            if self._lowered is None:
                self._before_change, self._lowered = self._ratios.median, mark(record)
        else:
            self._lowered = None
        self._ratios.clear()

    def _judge(self, record: StepRecord, ratio: float) -> Signs:
        limits = self._limits
        near_peak = record.learning_rate >= _NEAR_PEAK * self._peak_rate
        lowered = self._lowered is not None and ratio < limits.history_share * self._before_change
        young = self._is_young(record) and ratio < limits.young_update_ratio
        if not lowered and not (near_peak and (young or ratio < limits.update_ratio)):
            self._first = None
            return HEALTHY
        self._first = self._first or (self._lowered if lowered else None) or mark(record)
        fall = self._fall(record.step + 1, self._lowered.step if lowered and self._lowered else 0)
        if not young and (math.isnan(fall) or fall > limits.least_fall):
            return HEALTHY
        if young:
            fall = self._levels.first - self._levels.last
        usual = self._before_change if lowered else 1e-3
        return (
            Sign(
                kind="slow-progress",
                severity="warning",
                first=self._first,
                evidence={"update_ratio": ratio, "usual": usual, "fall": fall},
                sentence=(
                    f"An update changes the weights by {ratio:.2g} of their size, where "
                    f"{usual:.2g} {'was' if lowered else 'is'} usual, and the loss hardly falls "
                    f"({fall:.3f} nats): the learning rate of {record.learning_rate:.3g} may be "
                    f"too low."
                ),
            ),
        )

    def _is_young(self, record: StepRecord) -> bool:
        """The loss is still about that of the first steps, late enough to be elsewhere."""
        levels, limits = self._levels, self._limits
        if levels.begin > 1 or record.step - self._warm_from < limits.young_steps:
            return False
        return levels.last > (1 - limits.young_fall) * levels.first

    def _fall(self, end: int, lowered_at: int) -> float:
        """Fall of the loss in the last fifth of the run's age, or since the rate was lowered."""
        begin = max(0.8 * end, lowered_at)
        if end - begin < 32:
            return math.nan
        quarter = (end - begin) / 4
        return self._levels.between(begin, begin + quarter) - self._levels.between(
            end - quarter, end
        )
