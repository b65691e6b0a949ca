"""Gradient spike: the gradient norm jumps far above its level (INCIDENTS N2, H3).

Enters: step records. Leaves: a notice for an isolated spike, which clipping absorbs; a warning and
an alarm when they come again and again. Never knows: what the clip is.

The norm is judged by its logarithm, in which healthy norms are about normal.
"""

import math
from collections import deque

from longhaul.config.diagnose import GradientSpikeLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import Baseline
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_LONG_SPIKE_STEPS = 10
"""A norm that stays up this long counts as one more spike."""


class GradientSpike(Detector):
    """Judges every finite gradient norm."""

    def __init__(self, limits: GradientSpikeLimits) -> None:
        self._limits = limits
        self._baseline = Baseline(limits.window_steps, limits.new_level_steps)
        self._spikes: deque[Mark] = deque()
        self._high_steps = 0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Steps in a row above the line are one spike; ten are another."""
        if changed:
            self._baseline.recentre()
        norm = record.gradient_norm
        if not math.isfinite(norm) or norm <= 0 or record.masked:
            return None
        limits, level = self._limits, self._baseline.level
        value = math.log(norm)
        high = value - level > limits.least and self._baseline.is_unheard_of(
            value, limits.deviations, limits.floor
        )
        self._baseline.learn(value, high)
        if not high:
            self._high_steps = 0
            return HEALTHY
        if self._high_steps % _LONG_SPIKE_STEPS == 0:
            self._spikes.append(mark(record))
        self._high_steps += 1
        while self._spikes[0].step <= record.step - limits.repeat_steps:
            self._spikes.popleft()
        return (self._sign(norm, math.exp(level), record),)

    def _sign(self, norm: float, level: float, record: StepRecord) -> Sign:
        count, severity = len(self._spikes), self._severity(record)
        often = f"; {count} times within {self._limits.repeat_steps} steps" if count > 1 else ""
        return Sign(
            kind="gradient-spike",
            severity=severity,
            first=self._spikes[0],
            evidence={"gradient_norm": norm, "level": level, "spikes": float(count)},
            sentence=(
                f"The gradient norm jumped from about {level:.3g} to {norm:.3g}{often}"
                + ("." if count > 1 else ", once: clipping takes care of that.")
            ),
        )

    def _severity(self, record: StepRecord) -> Severity:
        count = len(self._spikes)
        if count < self._limits.warning or record.warmup:
            return "notice"
        return "alarm" if count >= self._limits.alarm else "warning"
