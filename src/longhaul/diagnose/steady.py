"""Growth that goes on by a share of itself: how fast, and since when.

Enters: a few readings of one gauge. Leaves: the slope of its logarithm, or none. Never knows: what
is read, or where its danger lies.
"""

import math
from collections.abc import Sequence

from longhaul.config.diagnose import GrowthLimits
from longhaul.diagnose.robust import trend

_STEADY = 0.5
"""Least slope of the later half of the readings over that of all: what flattens is healthy."""
_BACK_READINGS = 4
"""Readings, times the distance at which a trend was seen, over which its pace is followed back."""


def steady_slope(
    times: Sequence[int], values: Sequence[float], limits: GrowthLimits
) -> float | None:
    """Slope of the logarithm per step, if the growth is no accident and does not flatten."""
    count = len(values)
    if not values[0] * (1 + limits.least_rise) < values[-1] < math.inf:
        return None
    if not all(0 < value < math.inf for value in values):
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
