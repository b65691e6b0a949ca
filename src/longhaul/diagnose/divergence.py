"""Divergence: the loss has left its best level and does not return.

The level is the median loss of the last steps. The best level is the lowest median of twice as many
since the data changed as scheduled. The margin between them is counted in standard deviations of
the level itself, as losses near in time hang together in some runs; that the lowest and the highest
of many levels are luck is allowed for. A level above the loss of the first step, which was read
before any update, is divergence too. A rise began where a cumulative sum of the losses above the
middle of the margin last left zero (CUSUM, Page 1954).
"""

import math

from longhaul.config.diagnose import DivergenceLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import SIGMA_PER_MAD, Noise, Window
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Sign, Signs

_LEAST_LOSSES = 8
"""Losses that make a first level, to be held against the loss before any update."""
_LOSS_BENDS = 96
"""Bends of the course of losses, which give the noise of a step."""
_BENDS = 64
"""Bends of the course of levels, which give the noise of a level."""
_LEAST_BENDS = 5


class Divergence(Detector):
    """Judges every finite loss."""

    def __init__(self, limits: DivergenceLimits) -> None:
        self._limits = limits
        self._losses = Window(limits.level_steps)
        self._longer = Window(2 * limits.level_steps)
        self._judged_steps = 0
        self._noise = _Noise(limits.level_steps)
        self._best = math.inf
        self._start = math.inf  # the loss before any update
        self._rise: StepRecord | None = None
        self._risen = 0.0
        self._margin = self._lower_margin = limits.margin
        self._above_steps = 0  # in a row that the level is above the lower margin
        self._high_steps = 0  # above the margin

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Hold the level against the best one."""
        if changed == "data":
            self._losses.clear()
            self._longer.clear()
            self._noise.renew()
            self._best, self._rise, self._risen = math.inf, None, 0.0
            self._start = math.inf  # of other data: no loss of these may be held against it
            self._judged_steps = self._above_steps = self._high_steps = 0
            self._margin = self._lower_margin = self._limits.margin
        loss = record.loss
        if not math.isfinite(loss):
            return None
        if record.step == 1:
            self._start = loss
        self._losses.push(loss)
        self._longer.push(loss)
        level = self._losses.median
        # A level that is up must not teach how far up levels usually are.
        if self._above_steps:
            self._noise.cut()
        else:
            self._noise.push(loss, level)
        if len(self._longer) == 2 * self._limits.level_steps:
            self._best = min(self._best, self._longer.median)
            if self._judged_steps % self._limits.level_steps == 0:
                noise, limits = self._noise.of_level(), self._limits
                luck = math.sqrt(2 * math.log(2 + self._judged_steps / limits.level_steps))
                self._margin = max(limits.margin, (limits.deviations + 2 * luck) * noise)
                lower = (limits.lasting_deviations + luck) * noise
                self._lower_margin = max(limits.margin, lower)
            self._judged_steps += 1
        self._follow_rise(record)
        if len(self._losses) < _LEAST_LOSSES:
            return None
        excess = level - self._best  # −∞ as long as there is no best level
        worse_than_start = level > self._start + self._limits.margin
        if excess <= self._lower_margin and not worse_than_start:
            # The common case, kept short.
            self._above_steps = self._high_steps = 0
            return HEALTHY
        self._above_steps += 1
        high = excess > self._margin or worse_than_start
        self._high_steps = self._high_steps + 1 if high else 0
        lasts = self._above_steps >= self._limits.lasting_steps
        if not lasts and self._high_steps < self._limits.warning_steps:
            return HEALTHY
        return (self._sign(record, level, lasts, worse_than_start),)

    def _follow_rise(self, record: StepRecord) -> None:
        """Remember where losses last began to be above the middle of the margin."""
        above = record.loss - min(self._best, self._start) - self._lower_margin / 2
        # A lone high loss is forgotten within a few.
        self._risen = max(0.0, self._risen + min(above, self._lower_margin))
        if self._risen == 0.0:
            self._rise = None
        elif self._rise is None:
            self._rise = record

    def _sign(self, record: StepRecord, level: float, lasts: bool, worse_than_start: bool) -> Sign:
        best, margin = min(self._best, self._start), self._margin
        excess = level - best
        far = excess > 2 * margin or worse_than_start
        severity: Severity = "warning"
        if far or lasts or self._high_steps >= self._limits.alarm_steps:
            severity = "alarm"
        first = self._rise or record
        than_start = "; that is worse than at the start" if worse_than_start else ""
        steps = float(self._above_steps)
        evidence = {"level": level, "best": best, "margin": margin, "steps": steps}
        sentence = (
            f"The loss has risen from its best level of {best:.3f} to {level:.3f} nats "
            f"since step {first.step} and does not return{than_start}."
        )
        return Sign("divergence", severity, first, sentence, evidence=evidence)


class _Noise:
    """How far a level lies from the course of the levels around it, by chance.

    The larger of two figures: that of a median of losses, and that of the levels themselves, from
    bends of three in a row, once there are enough of these to tell. Trends cancel in both.
    """

    def __init__(self, level_steps: int) -> None:
        self._level_steps = level_steps
        self._losses = Noise(_LOSS_BENDS)
        self._bends = Window(_BENDS)
        self.cut()

    def cut(self) -> None:
        """The next loss does not go on from the last."""
        self._losses.cut()
        self._levels: list[float] = []
        self._steps = 0

    def renew(self) -> None:
        """Other data from here on."""
        self.cut()
        self._losses.renew()

    def push(self, loss: float, level: float) -> None:
        """Take in a loss, and the level with it."""
        self._losses.push(loss)
        self._steps += 1
        if self._steps % self._level_steps == 0:
            self._levels.append(level)
            if len(self._levels) == 3:
                first, middle, last = self._levels
                self._bends.push(abs(first - 2 * middle + last))
                self._levels.pop(0)

    def of_level(self) -> float:
        """Standard deviation of a level."""
        of_median = self._losses.of_median(self._level_steps)
        if len(self._bends) < _LEAST_BENDS:
            return of_median
        return max(of_median, SIGMA_PER_MAD * self._bends.median / math.sqrt(6))
