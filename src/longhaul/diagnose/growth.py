"""Growth: a gauge grows toward its danger line while the loss is still fine; the
danger lines, and why they lie where they lie.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median_low
from typing import NamedTuple

from longhaul.config.diagnose import GrowthLimits
from longhaul.core.records import Severity, StepRecord
from longhaul.diagnose.robust import trend
from longhaul.diagnose.signs import HEALTHY, Change, Detector, Sign, Signs


class Line(NamedTuple):
    """From where on a gauge (its absolute value) is dangerous."""

    why: str
    warning: float = math.inf
    alarm: float = math.inf
    hard: bool = False
    """To stand beyond it does harm, whether the gauge still grows or not."""
    sudden: bool = False
    """It crosses its line from one reading to the next: a trend tells nothing."""
    in_a_row: int = 2
    """Readings beyond it in a row: a single high one is a spike."""
    typical: bool = False
    """The last and the median of so many must lie beyond it, not each."""
    exponent: float = math.inf
    """Power of the run's age that growth must exceed to be reported wherever it stands."""
    ratio: float = math.inf
    """Growth over the highest value of any layer before, at which that is done."""


_ACTIVATIONS = {
    "residual_max",
    "residual_min",
    "residual_max_abs",
    "attention_out_max_abs",
    "mlp_out_max_abs",
}
_OUTPUTS = {"output_logit_max", "logsumexp_max", "logsumexp_mean"}
_SECOND_MOMENTS = {"second_moment_ratio.matrix", "second_moment_ratio.head"}
"""Of roles all of whose elements have a gradient at every step. Rows of a table that are seldom
read have tiny second moments, and their ratio has heavy tails in healthy runs."""


def danger_lines(limits: GrowthLimits, fp16: bool) -> dict[str, Line]:
    """By gauge, or by what stands before the role of weights in its name."""
    outputs = Line(
        "output logits as large lose their digits in half precision",
        limits.output_logit_warning,
        limits.output_logit_alarm,
    )
    second_moments = Line(
        "the optimizer expects smaller gradients than it gets, and steps too far",
        limits.second_moment_warning,
        limits.second_moment_alarm,
        hard=True,
        sudden=True,
        in_a_row=limits.second_moment_readings,
    )
    activations = Line(
        "healthy gauges grow far more slowly at this age",
        exponent=limits.exponent,
        ratio=limits.ratio,
    )
    if fp16:
        activations = activations._replace(
            why="fp16 holds no number beyond 65,504",
            warning=limits.fp16_warning,
            alarm=limits.fp16_alarm,
            hard=True,
        )
    return {
        **dict.fromkeys(_ACTIVATIONS, activations),
        **dict.fromkeys(_OUTPUTS, outputs),
        **dict.fromkeys(_SECOND_MOMENTS, second_moments),
        "attention_logit_max": Line(
            "with logits as large attention looks at one token only, and the loss follows",
            limits.attention_logit_warning,
            limits.attention_logit_alarm,
        ),
        "update_ratio.matrix": Line(
            "weights that are replaced as fast learn nothing that lasts",
            limits.update_ratio_warning,
            hard=True,
            sudden=True,
            in_a_row=limits.readings,
            typical=True,
        ),
        "weight_norm": Line(
            "healthy weights grow far more slowly at this age",
            exponent=limits.weight_exponent,
            ratio=limits.weight_ratio,
        ),
    }


_STEADY = 0.5
"""Least slope of the later half of the readings over that of all: what flattens is healthy."""
_BACK_READINGS = 4
"""Readings, times the distance at which a trend was seen, over which its pace is followed back."""


def steady_slope(
    times: Sequence[int], values: Sequence[float], limits: GrowthLimits
) -> float | None:
    """Slope of the logarithm per step, if the growth is no accident and does not flatten."""
    count = len(values)
    rises = values[0] * (1 + limits.least_rise) < values[-1]
    if not rises or not all(0 < value < math.inf for value in values):
        return None
    logs = [math.log(value) for value in values]
    whole = trend(times, logs)
    if whole.concordance < limits.concordance:
        return None
    if whole.slope * (times[-1] - times[0]) < limits.deviations * whole.deviation:
        return None
    later = trend(times[count // 2 :], logs[count // 2 :])
    if later.slope < _STEADY * whole.slope:
        return None
    return min(whole.slope, later.slope)


def pace(times: Sequence[int], values: Sequence[float], slope: float, stride: int) -> int:
    """Number of the reading at which growth at this slope began.

    Followed back from the last reading until the pace is half of it: a gauge may have grown in the
    first steps of a run too, healthily, and what is to blame began later.
    """
    back = _BACK_READINGS * stride
    for number in range(len(values) - 1, back - 1, -1):
        before, now = values[number - back], values[number]
        if not (0 < before < math.inf and 0 < now < math.inf):
            return number
        if math.log(now / before) < slope / 2 * (times[number] - times[number - back]):
            return number
    return 0


_READINGS_KEPT = 64
_NEAR = 0.5
"""Gauges below this share of their warning line are not asked for a forecast."""
_STRIDES = (1, 2, 4)
"""Between the readings of a trend: slow growth hides in the noise of near ones."""
_STANDING: tuple[Severity, ...] = ("notice", "warning", "alarm")
"""Of what stands beyond its warning line; that it grows counts, and that the line is hard."""
_SHRINKING = ("weight_norm.matrix", "weight_norm.head", "weight_norm.embedding")


class _Reading(NamedTuple):
    record: StepRecord
    values: tuple[float, ...]
    highest: float


@dataclass(frozen=True, slots=True)
class _Rise:
    """A trend that is no accident."""

    slope: float  # of the logarithm, per step
    first: StepRecord  # where growth at this pace began
    value: float  # then
    base: float  # highest value of any layer until then


class Growth(Detector):
    """Follows every layer of every gauge.

    Healthy gauges grow too, fast while the rate warms up and then ever more slowly, as a small
    power of the run's age or its logarithm. What ends badly grows by a share of itself at every
    step. So growth counts if it is steady (`steady_slope`) and reaches its line within a share of
    the run's age; where a gauge has no line, if it is faster than a large power of age and has left
    behind whatever any layer showed before. To stand high without growing is at most a warning.
    Weights that shrink as fast are told too: decay then outweighs all that is learned. A forecast
    beyond `total_steps` is no trouble.
    """

    def __init__(self, limits: GrowthLimits, total_steps: int | None) -> None:
        self._limits = limits
        self._total_steps = math.inf if total_steps is None else total_steps
        self._readings: dict[str, deque[_Reading]] = {}
        self._lines = {fp16: danger_lines(limits, fp16) for fp16 in (False, True)}

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Judge a gauge step; steps without readings say nothing."""
        if changed:  # a rate that was lowered has a trend of its own
            self._readings.clear()
        if not (record.gauges or record.totals):
            return None
        signs: list[Sign] = []
        lines = self._lines[record.loss_scale is not None]
        totals = {gauge: (value,) for gauge, value in record.totals.items()}
        for gauge, values in chain(record.gauges.items(), totals.items()):
            if (line := lines.get(gauge) or lines.get(gauge.partition(".")[0])) is not None:
                signs += self._judge(gauge, values, line, record)
        return tuple(signs) or HEALTHY

    def _judge(
        self, gauge: str, values: tuple[float, ...], line: Line, record: StepRecord
    ) -> Iterator[Sign]:
        readings = self._readings.setdefault(gauge, deque(maxlen=_READINGS_KEPT))
        if readings and len(readings[-1].values) != len(values):
            readings.clear()
        if record.warmup:
            # What grows with the rate is no trend; the last two tell where a gauge stands.
            while len(readings) > 1:
                readings.popleft()
        sizes = tuple(map(abs, values))
        readings.append(_Reading(record, sizes, max(sizes)))
        for layer in range(len(sizes)):
            subject = f"{gauge}[{layer}]" if gauge in record.gauges else gauge
            if (sign := self._judge_one(subject, layer, line, readings, record)) is not None:
                yield sign
        if gauge in _SHRINKING and (sign := self._shrinking(gauge, readings)) is not None:
            yield sign

    def _judge_one(
        self, subject: str, layer: int, line: Line, readings: deque[_Reading], record: StepRecord
    ) -> Sign | None:
        now = readings[-1].values[layer]
        # Nearly every gauge nearly always ends here, for the price of two comparisons.
        if now < _NEAR * line.warning and not now >= line.ratio * readings[0].highest:
            return None
        if not math.isfinite(now):
            return None
        stands = 0.0
        if len(readings) >= line.in_a_row:
            last = [readings[-n].values[layer] for n in range(1, line.in_a_row + 1)]
            stands = min(now, median_low(last)) if line.typical else min(last)
        rise = None if line.sudden else self._rise(layer, readings)
        severity = self._severity(stands, now, line, rise, record.step)
        if severity is None:
            return None
        return _sign(subject, severity, now, line, rise or _since(layer, line, readings), record)

    def _severity(
        self, stands: float, now: float, line: Line, rise: _Rise | None, step: int
    ) -> Severity | None:
        grows = rise is not None
        if stands >= line.alarm:
            return "alarm" if grows or line.hard else "warning"
        if stands >= line.warning:
            return _STANDING[grows + line.hard]
        if rise is None:
            return None
        if rise.slope * step > line.exponent and now >= line.ratio * rise.base:
            return "warning"
        return "warning" if self._is_near(now, line, rise, step) else None

    def _is_near(self, now: float, line: Line, rise: _Rise, step: int) -> bool:
        """The line is about to be crossed, as far as the growth already seen can tell."""
        if not _NEAR * line.warning <= now < line.alarm:
            return False
        if math.log(line.alarm / now) > self._limits.reach * math.log(now / rise.value):
            return False
        ahead = _steps_until(line.alarm, now, rise)
        return ahead <= self._limits.horizon_share * step and step + ahead <= self._total_steps

    def _rise(self, layer: int, readings: deque[_Reading]) -> _Rise | None:
        count = self._limits.readings
        for stride in _STRIDES:
            begin = len(readings) - 1 - stride * (count - 1)
            if begin < 0:
                return None
            # Most gauges that are high do not grow: no list is made for those.
            if readings[begin].values[layer] >= readings[-1].values[layer]:
                continue
            spread = [readings[i] for i in range(begin, len(readings), stride)]
            times = [reading.record.step for reading in spread]
            values = [reading.values[layer] for reading in spread]
            if (slope := steady_slope(times, values, self._limits)) is None:
                continue
            steps = [reading.record.step for reading in readings]
            course = [reading.values[layer] for reading in readings]
            knee = pace(steps, course, slope, stride)
            base = max(readings[i].highest for i in range(knee + 1))
            return _Rise(slope, readings[knee].record, course[knee], base)
        return None

    def _shrinking(self, gauge: str, readings: deque[_Reading]) -> Sign | None:
        limits, count = self._limits, self._limits.readings
        if len(readings) < count or not readings[-1].values[0] > 0:
            return None
        last = [readings[i] for i in range(-count, 0)]
        now, before = last[-1].values[0], max(reading.highest for reading in last)
        if now * limits.shrink_ratio > before:
            return None
        times = [reading.record.step for reading in last]
        slope = steady_slope(times, [1 / r.values[0] for r in last if r.values[0] > 0], limits)
        if slope is None or slope * times[-1] < limits.shrink_exponent:
            return None
        first = next(r for r in reversed(last) if r.values[0] == before)
        halving = math.log(2) / slope
        sentence = (
            f"{gauge} has shrunk from {before:.4g} to {now:.4g} since step {first.record.step}, "
            f"halving every {halving:.0f} steps: weight decay undoes what is learned."
        )
        evidence = {"value": now, "base": before, "halving_steps": halving}
        return Sign("growth", "warning", first.record, sentence, gauge, evidence)


def _since(layer: int, line: Line, readings: deque[_Reading]) -> int:
    """Step of the last reading before a gauge stood beyond its warning line."""
    last = range(max(len(readings) - line.in_a_row, 0), len(readings))
    first = next((i for i in last if readings[i].values[layer] >= line.warning), last[-1])
    return readings[max(first - 1, 0)].record.step


def _sign(
    subject: str, severity: Severity, now: float, line: Line, rise: _Rise | int, record: StepRecord
) -> Sign:
    """Of a trend, or of a gauge that has stood beyond its line since a step."""
    evidence = {"value": now}
    if math.isfinite(line.alarm):
        evidence |= {"warning_line": line.warning, "danger_line": line.alarm}
    if isinstance(rise, int):
        evidence["stands_since"] = float(rise)
        sentence = f"{subject} stands at {now:.4g}: {line.why}."
        return Sign("growth", severity, record, sentence, subject, evidence)
    doubling = math.log(2) / rise.slope
    evidence |= {"base": rise.value, "doubling_steps": doubling}
    sentence = (
        f"{subject} has grown from {rise.value:.4g} to {now:.4g} since step {rise.first.step}, "
        f"doubling every {doubling:.0f} steps"
    )
    if now < line.alarm < math.inf:
        crossing = record.step + _steps_until(line.alarm, now, rise)
        evidence["forecast_step"] = crossing
        sentence += f"; it will cross {line.alarm:g} at about step {crossing:.0f}"
    return Sign("growth", severity, rise.first, f"{sentence}: {line.why}.", subject, evidence)


def _steps_until(target: float, now: float, rise: _Rise) -> float:
    return max(math.log(target / now) / rise.slope, 0.0)
