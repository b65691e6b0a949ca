"""NaN or infinity in loss, gradient or a gauge; fp16's loss scale falling faster than it grows."""

import math
from collections import deque

from longhaul.config.diagnose import LossScaleLimits, NonFiniteLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Sign, Signs


class NonFinite(Detector):
    """Counts steps with anything non-finite."""

    def __init__(self, limits: NonFiniteLimits) -> None:
        self._limits = limits
        self.again = limits.again
        self._bad: deque[StepRecord] = deque()
        self._place = ""
        self._source = ""

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """One step is told; several within the window are a trouble that stays."""
        if not _is_bad(record):
            return HEALTHY
        if self._bad and self._bad[-1].step <= record.step - self._limits.window_steps:
            self._place = self._source = ""
        self._bad.append(record)
        while self._bad[0].step <= record.step - self._limits.window_steps:
            self._bad.popleft()
        self._place = self._place or first_place(record)
        sources = record.source_losses.items()
        broken = (name for name, loss in sources if not math.isfinite(loss))
        self._source = self._source or next(broken, "")
        return (self._sign(record),)

    def _sign(self, record: StepRecord) -> Sign:
        count = len(self._bad)
        severity: Severity = "notice"
        if count >= self._limits.warning:
            severity = "warning"
        if count >= self._limits.alarm or not record.masked:
            severity = "alarm"  # what was not held back is in the weights
        what = "loss" if not math.isfinite(record.loss) else "gradient"
        if math.isfinite(record.gradient_norm) and what == "gradient":
            what = "reading of a gauge"
        place = f", first in {self._place}" if self._place else ""
        source = f", with text of {self._source}" if self._source else ""
        often = f", {count} times in {self._limits.window_steps} steps" if count > 1 else ""
        held = "the update was held back" if record.masked else "the update was not held back"
        sentence = f"The {what} of step {record.step} is not finite{place}{source}{often}; {held}."
        loss, norm = record.loss, record.gradient_norm
        evidence = {"loss": loss, "gradient_norm": norm, "steps": float(count)}
        return Sign("non-finite", severity, self._bad[0], sentence, evidence=evidence)


def _is_bad(record: StepRecord) -> bool:
    if not math.isfinite(record.loss):
        return True
    if record.loss_scale is not None:
        return False  # a scaled gradient may overflow: the scale is then lowered
    if record.masked or not math.isfinite(record.gradient_norm):
        return True
    return bool(record.gauges or record.totals) and bool(first_place(record))


def first_place(record: StepRecord) -> str:
    """The lowest layer with a non-finite gauge, as `gauge[layer]`, or a total; empty if none.

    Data flows upwards: what is broken there broke the others. Totals come after the last layer.
    """
    places = [
        (layer, f"{gauge}[{layer}]")
        for gauge, layers in record.gauges.items()
        for layer, value in enumerate(layers)
        if not math.isfinite(value)
    ]
    if places:
        return min(places, key=lambda place: place[0])[1]
    broken = (name for name, value in record.totals.items() if not math.isfinite(value))
    return next((name for name in broken if not name.startswith("noise_scale")), "")


_FRESH_RISE = 2.0
"""Doublings at once that only a reset makes."""


class LossScaleCollapse(Detector):
    """Follows the binary logarithm of the scale.

    A fresh scale begins far too high on purpose and falls at every step until it fits; it is judged
    once it has settled. The run will not lower it below `least_scale`.
    """

    def __init__(self, limits: LossScaleLimits, least_scale: float) -> None:
        self._limits = limits
        self._least = math.log2(least_scale)
        self._before: float | None = None
        self._calm_steps = 0
        self._settled = False
        self._moves: deque[tuple[StepRecord, float]] = deque()

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Count how far it fell, on balance, within the window."""
        if record.loss_scale is None or not 0 < record.loss_scale < math.inf:
            return None
        scale = math.log2(record.loss_scale)
        move = math.inf if self._before is None else scale - self._before
        if move > _FRESH_RISE:
            self._calm_steps, self._settled, move = 0, False, 0.0
            self._moves.clear()
        self._before = scale
        self._calm_steps = self._calm_steps + 1 if move >= 0 and not record.masked else 0
        self._settled = self._settled or self._calm_steps >= self._limits.settle_steps
        if self._settled and move:
            self._moves.append((record, move))
        while self._moves and self._moves[0][0].step <= record.step - self._limits.window_steps:
            self._moves.popleft()
        if record.loss_scale_at_floor:
            return (self._sign(record, "alarm", 0.0),)
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
        first = next(falls, record)
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
        forecast = record.step + ahead
        evidence = {"loss_scale": scale, "halvings": fallen, "forecast_step": forecast}
        return Sign("loss-scale-collapse", severity, first, sentence, evidence=evidence)
