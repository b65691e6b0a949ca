"""Overfitting: validation loss rises while training loss falls (INCIDENTS N14).

Enters: evaluations, and the loss of step records. Leaves: a notice, a warning, then an alarm.
Never knows: how often a text was read, beyond what the evaluation says (`epoch`).
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

from longhaul.config.diagnose import OverfittingLimits
from longhaul.core.records import Event, Severity, StepRecord
from longhaul.diagnose.robust import Window
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_LEVEL_STEPS = 64
_RECENT_STEPS = 8
"""Losses whose median shows that the model is in a spike: its validation loss is then up too."""


@dataclass(frozen=True, slots=True)
class _Validation:
    mark: Mark
    loss: float
    training: float  # level of the training loss at that time


class Overfitting(Detector):
    """Holds each evaluation against the best one."""

    def __init__(self, limits: OverfittingLimits) -> None:
        self._limits = limits
        self._training = Window(_LEVEL_STEPS)
        self._recent = Window(_RECENT_STEPS)
        self._whole_split: bool | None = None
        self._last = Mark(0, 0)
        self._past: deque[_Validation] = deque(maxlen=_LEVEL_STEPS)
        self._best: _Validation | None = None
        self._above = 0

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Follow the training loss; another mixture has another one."""
        if changed == "data":
            self._training.clear()
            self._recent.clear()
            self._past.clear()
            self._best, self._above = None, 0
        if math.isfinite(record.loss):
            self._training.push(record.loss)
            self._recent.push(record.loss)
        self._last = mark(record)
        return None

    def evaluated(self, event: Event) -> Signs:
        """Hold one evaluation against the best of those that read as much text as the first.

        The last of a run may read the whole split where the others read a part: it is passed over.
        """
        loss, training = _number(event.data.get("loss")), self._training.median
        if not math.isfinite(loss) or math.isnan(training):
            return None
        whole_split = bool(event.data.get("whole_split"))
        if self._whole_split is None:
            self._whole_split = whole_split
        if whole_split != self._whole_split or self._is_in_a_spike():
            return None
        now = _Validation(self._last, loss, training)
        self._past.append(now)
        if self._best is None or loss < self._best.loss:
            self._best, self._above = now, 0
            return HEALTHY
        margin = max(self._limits.margin, self._limits.deviations * self._noise())
        fallen = self._best.training - training
        if loss - self._best.loss <= margin or fallen <= 0:
            self._above = 0
            return HEALTHY
        self._above += 1
        return (self._sign(event, now, self._best, margin),)

    def _is_in_a_spike(self) -> bool:
        """The last training losses are up themselves: that is no overfitting."""
        return self._recent.median > self._training.median + self._training.deviation

    def _noise(self) -> float:
        """Robust standard deviation of one evaluation about its neighbours', trends left out."""
        losses = [validation.loss for validation in self._past]
        bends = Window(_LEVEL_STEPS)
        for a, b, c in zip(losses, losses[1:], losses[2:], strict=False):
            bends.push(abs(a - 2 * b + c))
        # The variance of a − 2b + c is six times that of each.
        return 1.4826 * bends.median / math.sqrt(6) if len(bends) >= 4 else 0.0

    def _sign(self, event: Event, now: _Validation, best: _Validation, margin: float) -> Sign:
        severity: Severity = "notice"
        if self._above >= self._limits.evaluations:
            severity = "alarm" if self._above >= 2 * self._limits.evaluations else "warning"
        evidence = {
            "validation": now.loss,
            "best_validation": best.loss,
            "margin": margin,
            "training": now.training,
            "training_at_best": best.training,
        }
        epoch = _number(event.data.get("epoch"))
        where = ""
        if math.isfinite(epoch):
            evidence["epoch"] = epoch
            where = f", at epoch {epoch:.2f} of the data"
        return Sign(
            kind="overfitting",
            severity=severity,
            first=best.mark,
            evidence=evidence,
            sentence=(
                f"Validation loss has risen from {best.loss:.3f} at step {best.mark.step} to "
                f"{now.loss:.3f} while training loss fell from {best.training:.3f} to "
                f"{now.training:.3f}{where}: the model learns its text by heart."
            ),
        )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | str) and value != "" else math.nan
