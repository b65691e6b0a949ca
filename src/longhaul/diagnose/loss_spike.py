"""Loss spike: the loss jumps far above its level of the last steps.

Enters: step records. Leaves: a notice for a spike that may return by itself, a warning and an
alarm while it stays. Never knows: whether clipping, the data or the rate is to blame.
"""

import math

from longhaul.config.diagnose import LossSpikeLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import Baseline
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark


class LossSpike(Detector):
    """Judges every finite loss."""

    def __init__(self, limits: LossSpikeLimits) -> None:
        self._limits = limits
        self._baseline = Baseline(limits.window_steps, limits.new_level_steps)
        self._first: Mark | None = None
        self._high_steps = 0
        self._highest = 0.0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """A loss is high if nothing like it was seen lately; a spike lasts until it is not."""
        if changed == "data":
            self._baseline.recentre()
            self._first = None
        if not math.isfinite(record.loss):
            return None
        level = self._baseline.level
        high = self._is_high(record.loss, level)
        self._baseline.learn(record.loss, high)
        if not high:
            self._first = None
            return HEALTHY
        if self._first is None:
            self._first, self._high_steps, self._highest = mark(record), 0, record.loss
        self._high_steps += 1
        self._highest = max(self._highest, record.loss)
        return (self._sign(record, level, self._first),)

    def _is_high(self, loss: float, level: float) -> bool:
        limits = self._limits
        if self._first is not None and loss - level > (self._highest - level) / 2:
            return True  # still up: half-way back is not back
        if loss - level <= limits.least:
            return False
        return self._baseline.is_unheard_of(loss, limits.deviations, limits.floor)

    def _sign(self, record: StepRecord, level: float, first: Mark) -> Sign:
        severity: Severity = "notice"
        if self._high_steps >= self._limits.warning:
            severity = "alarm" if self._high_steps >= self._limits.alarm else "warning"
        deviation = max(self._baseline.deviation, self._limits.floor)
        return Sign(
            kind="loss-spike",
            severity=severity,
            first=first,
            evidence={
                "loss": record.loss,
                "level": level,
                "deviations": (record.loss - level) / deviation,
                "steps": float(self._high_steps),
            },
            sentence=(
                f"The loss jumped from about {level:.3f} to {record.loss:.3f} nats at step "
                f"{first.step}"
                + (
                    f" and has stayed up for {self._high_steps} steps."
                    if self._high_steps > 1
                    else "; nothing like it was seen in the steps before."
                )
            ),
        )
