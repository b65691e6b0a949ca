"""NaN or infinity in loss, gradient or a gauge (INCIDENTS N3).

Enters: step records. Leaves: a notice for a single update that the gate held back, an alarm when
it repeats. Never knows: fp16's ordinary overflows, which `loss_scale.py` judges.
"""

import math
from collections import deque

from longhaul.config.diagnose import NonFiniteLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark


class NonFinite(Detector):
    """Counts steps with anything non-finite."""

    def __init__(self, limits: NonFiniteLimits) -> None:
        self._limits = limits
        self.again = limits.again
        self._bad: deque[Mark] = deque()
        self._place = ""
        self._source = ""

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """One step is told; several within the window are a trouble that stays."""
        if not _is_bad(record):
            return HEALTHY
        if self._bad and self._bad[-1].step <= record.step - self._limits.window_steps:
            self._place = self._source = ""
        self._bad.append(mark(record))
        while self._bad[0].step <= record.step - self._limits.window_steps:
            self._bad.popleft()
        self._place = self._place or first_place(record)
        self._source = self._source or _first_source(record)
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
        return Sign(
            kind="non-finite",
            severity=severity,
            first=self._bad[0],
            evidence={
                "loss": record.loss,
                "gradient_norm": record.gradient_norm,
                "steps": float(count),
            },
            sentence=(
                f"The {what} of step {record.step} is not finite{place}{source}{often}; {held}."
            ),
        )


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

    Data flows upwards, so whatever is broken in the lowest layer broke the others. Totals stand
    for what comes after the last layer.
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


def _first_source(record: StepRecord) -> str:
    broken = (name for name, loss in record.source_losses.items() if not math.isfinite(loss))
    return next(broken, "")
