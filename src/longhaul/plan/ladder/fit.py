"""Fits of a scaling ladder, with what is not known about them. Pure."""

import math
import random
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, linear_regression, variance

from longhaul.core.units import Nats

_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t, two-sided 95 %, for one to ten degrees of freedom."""
_FLOORS = 200
_DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and where it lies with a probability of 95 %."""

    value: float
    low: float
    high: float

    def holds(self, value: float) -> bool:
        """Whether a figure lies inside."""
        return self.low <= value <= self.high


def lowest_point(left: float, middle: float, right: float) -> float:
    """Where a parabola through values at -1, 0 (no higher) and 1 is lowest; 0 if all are equal."""
    bend = left - 2 * middle + right
    return (left - right) / (2 * bend) if bend > 0 else 0.0


def student95(degrees: int) -> float:
    """Student's t, two-sided 95 %; beyond ten degrees by two terms of its expansion, to 0.01."""
    if degrees < 1:
        return math.inf
    return _T95[degrees - 1] if degrees <= 10 else 1.96 + 2.37 / degrees + 2.82 / degrees**2


def power_law(x: Sequence[float], y: Sequence[float], at: float) -> float:
    """`y = a·x^b` through positive points by least squares of the logarithms, at another x."""
    return math.exp(sum(f * math.log(one) for f, one in zip(_factors(x, at), y, strict=True)))


def _factors(x: Sequence[float], at: float) -> list[float]:
    """Of each logarithm of y in the logarithm of the best power law at another x."""
    logs = [math.log(one) for one in x]
    middle = fmean(logs)
    spread = sum((one - middle) ** 2 for one in logs)
    beyond = (math.log(at) - middle) / spread
    return [1 / len(logs) + beyond * (one - middle) for one in logs]


def mean95(values: Sequence[float]) -> Interval:
    """Mean of values with Student's interval; without limits for a single one."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, -math.inf, math.inf)
    half = student95(len(values) - 1) * math.sqrt(variance(values) / len(values))
    return Interval(mean, mean - half, mean + half)


def slope95(x: Sequence[float], y: Sequence[float]) -> Interval:
    """Slope of a straight line by least squares, with Student's interval."""
    slope, intercept = linear_regression(x, y)
    degrees = len(x) - 2
    if degrees < 1:
        return Interval(slope, -math.inf, math.inf)
    squares = sum((b - intercept - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    middle = fmean(x)
    spread = sum((a - middle) ** 2 for a in x)
    half = student95(degrees) * math.sqrt(squares / degrees / spread)
    return Interval(slope, slope - half, slope + half)


def trend_in_words(slope: Interval, mean: Interval) -> str:
    """What becomes of a gain with size: grows, fades, holds, hurts, or not shown."""
    if not all(map(math.isfinite, (slope.value, mean.value))):
        return "diverges without it"
    if slope.low > 0:
        return "grows"
    if slope.high < 0:
        return "fades"
    if mean.low > 0:
        return "holds"
    return "hurts" if mean.high < 0 else "not shown"


def predict_loss(
    parameters: Sequence[float], losses: Sequence[Sequence[Nats]], at: float, seeds: int
) -> Interval:
    """Mean loss of `seeds` runs at another size, from the losses of all seeds at some sizes.

    The law is L = E + A·N^-a (arXiv 2203.15556, equation 2, at a given number of tokens). Three
    sizes cannot tell E apart from a, so E is not fitted: every E from 0 to just below the lowest
    loss counts, by the likelihood of the best A and a for it (Student's, as the noise is known
    from few runs). The interval is that of 4,000 draws of E by these weights, of the noise's
    variance from its posterior, and of the losses from both. What no such law fits is added
    to the noise.
    """
    means = [fmean(of_size) for of_size in losses]
    degrees = sum(len(of_size) - 1 for of_size in losses)
    if degrees < 1:
        raise ValueError("without two runs of a kind nothing is known of the noise")
    squares = sum(variance(of_size) * (len(of_size) - 1) for of_size in losses if len(of_size) > 1)
    noise = max(squares / degrees, 1e-12)  # of runs that agree to the last bit
    floors = [min(means) * part / _FLOORS for part in range(_FLOORS)]
    misfits = [_misfit(parameters, means, floor) for floor in floors]
    misfit = min(misfits) / max(1, len(means) - 2)
    of_mean = [noise / len(of_size) + misfit for of_size in losses]
    typical = fmean(of_mean)
    power = -(degrees + len(means) - 2) / 2  # two of them went into A and a
    weights = [*accumulate((1 + own / typical / degrees) ** power for own in misfits)]
    factors = _factors(parameters, at)
    chance = random.Random(0)  # the same losses give the same interval
    made: list[Nats] = []
    while len(made) < _DRAWS:
        floor = floors[bisect(weights, chance.random() * weights[-1])]
        wider = degrees / (2 * chance.gammavariate(degrees / 2, 1.0))
        drawn = [
            chance.gauss(mean, math.sqrt(v * wider)) for mean, v in zip(means, of_mean, strict=True)
        ]
        if min(drawn) > floor:
            own = chance.gauss(0.0, math.sqrt((noise / seeds + misfit) * wider))
            law = sum(f * math.log(mean - floor) for f, mean in zip(factors, drawn, strict=True))
            made.append(floor + math.exp(law) + own)
    made.sort()
    return Interval(made[_DRAWS // 2], made[round(0.025 * _DRAWS)], made[round(0.975 * _DRAWS)])


def _misfit(parameters: Sequence[float], means: Sequence[Nats], floor: Nats) -> float:
    """Sum of squares, in nats², that the best power law above a floor leaves."""
    above = [mean - floor for mean in means]
    laid = [power_law(parameters, above, size) for size in parameters]
    return sum((a - b) ** 2 for a, b in zip(above, laid, strict=True))
