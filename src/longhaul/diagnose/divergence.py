"""Divergence: the loss has left its best level and does not return (INCIDENTS N1, N10).

Enters: step records. Leaves: a warning, then an alarm. Never knows: the way it got there.

The level is the median loss of the last steps. The best level is the lowest median of a longer
stretch since something scheduled changed: the lowest of many short medians would be luck.
"""

import math

from longhaul.config.diagnose import DivergenceLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import Window
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_SPREAD_STEPS = 128
_BEST_STEPS = 64
_START_STEPS = 8
_BACK_STEPS = 3
"""Losses in a row near the best level, after which a rise has ended."""


class Divergence(Detector):
    """Judges every finite loss."""

    def __init__(self, limits: DivergenceLimits) -> None:
        self._limits = limits
        self._losses = Window(limits.level_steps)
        self._longer = Window(_BEST_STEPS)
        self._distances = Window(_SPREAD_STEPS)
        self._best = math.inf
        self._start: list[float] = []
        self._rise: Mark | None = None
        self._back_steps = 0
        self._high_steps = 0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Hold the level against the best one."""
        if changed:
            self._losses.clear()
            self._longer.clear()
            self._best, self._rise, self._high_steps = math.inf, None, 0
        loss = record.loss
        if not math.isfinite(loss):
            return None
        if record.step <= _START_STEPS:
            self._start.append(loss)
        self._losses.push(loss)
        self._longer.push(loss)
        if len(self._losses) < self._limits.level_steps:
            return None
        level, longer = self._losses.median, self._longer.median
        self._best = min(self._best, longer)
        if level - self._best < self._limits.margin / 2:
            self._distances.push(loss - longer)
        if self._rise is None and level - self._best < self._limits.margin / 2:
            # The common case, kept short: nothing is up, and one loss alone cannot be much.
            self._high_steps = 0
            if loss - self._best > self._limits.margin / 2:
                self._rise, self._back_steps = mark(record), 0
            return HEALTHY
        return self._judge(record, level)

    def _judge(self, record: StepRecord, level: float) -> Signs:
        limits = self._limits
        margin = max(limits.margin, limits.deviations * self._noise())
        self._follow_rise(record, margin)
        self._high_steps = self._high_steps + 1 if level - self._best > margin else 0
        if self._high_steps < limits.warning_steps:
            return HEALTHY
        return (self._sign(record, level, margin),)

    def _noise(self) -> float:
        deviation = self._distances.deviation
        return 0.0 if math.isnan(deviation) else deviation

    def _follow_rise(self, record: StepRecord, margin: float) -> None:
        """Remember the first loss of an unbroken rise: training went wrong there, not later."""
        if record.loss - self._best > margin / 2:
            self._back_steps = 0
            if self._rise is None:
                self._rise = mark(record)
        else:
            self._back_steps += 1
            if self._back_steps >= _BACK_STEPS and self._high_steps == 0:
                self._rise = None

    def _sign(self, record: StepRecord, level: float, margin: float) -> Sign:
        start = math.fsum(self._start) / len(self._start) if self._start else math.inf
        excess = level - self._best
        worse_than_start = level > start + margin
        severity: Severity = "warning"
        if excess > 2 * margin or worse_than_start or self._high_steps >= self._limits.alarm_steps:
            severity = "alarm"
        first = self._rise or mark(record)
        than_start = "; that is worse than at the start" if worse_than_start else ""
        return Sign(
            kind="divergence",
            severity=severity,
            first=first,
            evidence={
                "level": level,
                "best": self._best,
                "margin": margin,
                "steps": self._high_steps,
            },
            sentence=(
                f"The loss has risen from its best level of {self._best:.3f} to {level:.3f} nats "
                f"since step {first.step} and does not return{than_start}."
            ),
        )
