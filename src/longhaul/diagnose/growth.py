"""Growth: a thermometer grows toward its danger line while the loss is still fine (INCIDENTS N5).

Enters: gauge readings of step records. Leaves: a warning with a forecast of the step at which the
line is crossed, an alarm beyond it. Never knows: what makes a gauge grow.

A trend is the Theil–Sen slope of a gauge's logarithm over its last readings, so the forecast is
exponential. Healthy gauges grow too, fast at first, but as a small power of the run's age; so a
forecast counts only within a share of that age, and only if the later half of the readings grows
like the earlier. Gauges without a line are held against that power itself.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from longhaul.config.diagnose import GrowthLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.danger_lines import Line, line_of
from longhaul.diagnose.robust import trend
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_READINGS_KEPT = 64
_NEAR = 0.05
"""Gauges below this share of their line are not asked for a trend."""
_STRIDES = (1, 2, 4)
"""Trends are sought over as many readings at these distances: slow growth hides in the noise of
near ones."""
_KNEE = 0.1
"""Least depth of a knee, as a share of the whole rise."""
_STEADY = 0.5
"""Least slope of the later half of the readings over that of all: what flattens is healthy."""


class _Reading(NamedTuple):
    mark: Mark
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Rise:
    """A trend that is no accident."""

    slope: float  # of the logarithm, per step
    first: Mark
    base: float


class Growth(Detector):
    """Follows every layer of every gauge.

    Args:
        limits: of the section.
        total_steps: a forecast beyond them is no trouble.
    """

    def __init__(self, limits: GrowthLimits, total_steps: int | None) -> None:
        self._limits = limits
        self._total_steps = total_steps
        self._readings: dict[str, deque[_Reading]] = {}

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Judge a gauge step; steps without readings say nothing."""
        if changed:
            self._readings.clear()
        if not (record.gauges or record.totals):
            return None
        signs: list[Sign] = []
        for gauge, layers in record.gauges.items():
            signs += self._judge(gauge, layers, record, layered=True)
        for gauge, value in record.totals.items():
            signs += self._judge(gauge, (value,), record, layered=False)
        return tuple(signs) or HEALTHY

    def _judge(
        self, gauge: str, values: tuple[float, ...], record: StepRecord, layered: bool
    ) -> Iterator[Sign]:
        line = line_of(gauge, self._limits, record.loss_scale is not None)
        if line is None:
            return
        readings = self._readings.setdefault(gauge, deque(maxlen=_READINGS_KEPT))
        if readings and len(readings[-1].values) != len(values):
            readings.clear()
        readings.append(_Reading(mark(record), tuple(abs(value) for value in values)))
        for layer in range(len(values)):
            subject = f"{gauge}[{layer}]" if layered else gauge
            sign = self._judge_one(subject, layer, line, readings, record)
            if sign is not None:
                yield sign

    def _judge_one(
        self, subject: str, layer: int, line: Line, readings: deque[_Reading], record: StepRecord
    ) -> Sign | None:
        now = readings[-1].values[layer]
        if not math.isfinite(now) or (not line.relative and now < _NEAR * line.warning):
            return None
        # A single high reading is a spike; two are where the gauge stands.
        stands = min(now, readings[-2].values[layer]) if len(readings) > 1 else 0.0
        rise = None if record.warmup else self._rise(layer, readings)
        severity = self._severity(stands, now, line, rise, record.step)
        if severity is None:
            return None
        return self._sign(subject, severity, now, line, rise, record)

    def _severity(
        self, stands: float, now: float, line: Line, rise: _Rise | None, step: int
    ) -> Severity | None:
        if stands >= line.alarm or (rise and stands >= line.warning):
            return "alarm"
        if stands >= line.warning:
            return "warning"
        if rise is None or now <= rise.base:
            return None
        if line.relative:
            fast = rise.slope * step > self._limits.exponent
            return "warning" if fast and now >= self._limits.ratio * rise.base else None
        ahead = _steps_until(line.alarm, now, rise)
        end = math.inf if self._total_steps is None else self._total_steps
        if math.log(line.alarm / now) > self._limits.reach * math.log(now / rise.base):
            return None
        near = ahead <= self._limits.horizon_share * step and step + ahead <= end
        return "warning" if near else None

    def _rise(self, layer: int, readings: deque[_Reading]) -> _Rise | None:
        for stride in _STRIDES:
            begin = len(readings) - 1 - stride * (self._limits.readings - 1)
            if begin < 0:
                return None
            spread = [readings[i] for i in range(begin, len(readings), stride)]
            if (slope := self._slope(layer, spread)) is not None:
                return _Rise(slope, *_beginning(layer, readings))
        return None

    def _slope(self, layer: int, last: list[_Reading]) -> float | None:
        """Slope of the logarithm per step, if it is no accident and does not flatten."""
        count = len(last)
        values = [reading.values[layer] for reading in last]
        # Nearly every gauge nearly always ends here, for the price of a comparison.
        if not values[0] * (1 + self._limits.least_rise) < values[-1] < math.inf:
            return None
        if not all(0 < value < math.inf for value in values):
            return None
        times = [float(reading.mark.step) for reading in last]
        logs = [math.log(value) for value in values]
        whole = trend(times, logs)
        if whole.concordance < self._limits.concordance:
            return None
        if whole.slope * (times[-1] - times[0]) < self._limits.deviations * whole.deviation:
            return None
        later = trend(times[count // 2 :], logs[count // 2 :])
        if later.slope < _STEADY * whole.slope:
            return None
        return min(whole.slope, later.slope)

    def _sign(
        self,
        subject: str,
        severity: Severity,
        now: float,
        line: Line,
        rise: _Rise | None,
        record: StepRecord,
    ) -> Sign:
        evidence = {"value": now}
        if math.isfinite(line.alarm):
            evidence |= {"warning_line": line.warning, "danger_line": line.alarm}
        if rise is None:
            sentence = f"{subject} stands at {now:.4g}: {line.why}."
            return Sign("growth", severity, mark(record), sentence, subject, evidence)
        doubling = math.log(2) / rise.slope
        evidence |= {"base": rise.base, "doubling_steps": doubling}
        sentence = (
            f"{subject} has grown from {rise.base:.4g} to {now:.4g} since step {rise.first.step}, "
            f"doubling every {doubling:.0f} steps"
        )
        if now < line.alarm < math.inf:
            crossing = record.step + _steps_until(line.alarm, now, rise)
            evidence["forecast_step"] = crossing
            sentence += f"; it will cross {line.alarm:g} at about step {crossing:.0f}"
        return Sign("growth", severity, rise.first, f"{sentence}: {line.why}.", subject, evidence)


def _steps_until(target: float, now: float, rise: _Rise) -> float:
    return max(math.log(target / now) / rise.slope, 0.0)


def _beginning(layer: int, readings: deque[_Reading]) -> tuple[Mark, float]:
    """Reading at which the growth began, and the value then.

    It is the knee of the logarithm: the reading furthest below the chord from the first to the
    last. Growth without a knee began with the first.
    """
    known = [r for r in readings if 0 < r.values[layer] < math.inf]
    first, last = known[0], known[-1]
    base = math.log(first.values[layer])
    rise = math.log(last.values[layer]) - base
    span = max(last.mark.step - first.mark.step, 1)
    depths = [
        base + rise * (r.mark.step - first.mark.step) / span - math.log(r.values[layer])
        for r in known
    ]
    depth = max(depths)
    knee = known[depths.index(depth)] if depth > _KNEE * rise else first
    return knee.mark, knee.values[layer]
