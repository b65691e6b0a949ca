"""Loss-scale collapse: fp16's loss scale falls faster than it grows (INCIDENTS N4).

Enters: step records of runs with a loss scale. Leaves: a warning, and an alarm before the floor,
with a forecast. Never knows: why gradients overflow.

A fresh scale begins far too high on purpose and falls at every step until it fits; it is judged
once it has settled.
"""

import math
from collections import deque

from longhaul.config.diagnose import LossScaleLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_FRESH_RISE = 2.0
"""Doublings at once that only a reset makes."""


class LossScaleCollapse(Detector):
    """Follows the binary logarithm of the scale.

    Args:
        limits: of the section.
        least_scale: below which the run will not lower it.
    """

    def __init__(self, limits: LossScaleLimits, least_scale: float) -> None:
        self._limits = limits
        self._least = math.log2(least_scale)
        self._before: float | None = None
        self._calm_steps = 0
        self._settled = False
        self._moves: deque[tuple[Mark, float]] = deque()

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Count how far it fell, on balance, within the window."""
        if record.loss_scale is None or not 0 < record.loss_scale < math.inf:
            return None
        scale = math.log2(record.loss_scale)
        move = 0.0 if self._before is None else scale - self._before
        if self._before is None or move > _FRESH_RISE:
            self._calm_steps, self._settled = 0, False
            self._moves.clear()
            move = 0.0
        self._before = scale
        self._calm_steps = self._calm_steps + 1 if move >= 0 and not record.masked else 0
        self._settled = self._settled or self._calm_steps >= self._limits.settle_steps
        if self._settled and move:
            self._moves.append((mark(record), move))
        while self._moves and self._moves[0][0].step <= record.step - self._limits.window_steps:
            self._moves.popleft()
        if record.loss_scale_at_floor:
            return (self._sign(record, "alarm", 0.0),)
        return self._judge(record, scale)

    def _judge(self, record: StepRecord, scale: float) -> Signs:
        fallen = -sum(move for _, move in self._moves)
        if fallen < self._limits.falls:
            return HEALTHY
        steps = max(record.step - self._moves[0][0].step, 1)
        left = max(scale - self._least, 0.0)
        ahead = left * steps / fallen
        severity: Severity = "alarm" if ahead <= self._limits.alarm_steps else "warning"
        return (self._sign(record, severity, ahead),)

    def _sign(self, record: StepRecord, severity: Severity, ahead: float) -> Sign:
        # Not a rise just before: it fell too far only after that.
        falls = (place for place, move in self._moves if move < 0)
        first = next(falls, mark(record))
        fallen = -sum(move for _, move in self._moves)
        scale = record.loss_scale or math.nan
        if record.loss_scale_at_floor:
            sentence = f"Gradients overflow although the loss scale is at its floor, {scale:g}."
        else:
            sentence = (
                f"The loss scale was halved {fallen:.0f} times since step {first.step}, to "
                f"{scale:g}, without growing again; it will be at its floor at about step "
                f"{record.step + ahead:.0f}."
            )
        return Sign(
            kind="loss-scale-collapse",
            severity=severity,
            first=first,
            evidence={
                "loss_scale": scale,
                "halvings": fallen,
                "forecast_step": record.step + ahead,
            },
            sentence=sentence,
        )
