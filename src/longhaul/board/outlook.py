"""When a run will be done, by the pace of its last steps, and reach a loss, by its curve so far."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longhaul.core.units import Nats, Seconds

_BLOCKS = 20
_LEAST_STEPS = 10


@dataclass(frozen=True)
class Outlook:
    """Seconds until the last step."""

    left_s: Seconds
    """At the mean pace of the steps looked at, with their evaluations, saves and rollbacks."""
    low_s: Seconds
    """If all went on like the fastest tenth of them."""
    high_s: Seconds
    """Like the slowest tenth."""


def outlook(times: Sequence[Seconds], steps: Sequence[int], total_steps: int) -> Outlook | None:
    """Judge by the Unix `times` at which these `steps` were complete, in the order in which they
    were made; None where they are too few, or nothing is left. A rollback counts as time only.
    """
    left = total_steps - steps[-1] if steps else 0
    if left <= 0 or len(steps) < _LEAST_STEPS:
        return None
    size = max(1, (len(steps) - 1) // _BLOCKS)
    cuts = range(0, len(steps) - size, size)
    paces = sorted(
        (times[at + size] - times[at]) / (steps[at + size] - steps[at])
        for at in cuts
        if steps[at + size] > steps[at]
    )
    gained = steps[-1] - steps[0]
    if not paces or gained <= 0:
        return None
    mean = (times[-1] - times[0]) / gained
    low, high = paces[len(paces) // 10], paces[-1 - len(paces) // 10]
    return Outlook(left * mean, left * min(low, mean), left * max(high, mean))


@dataclass(frozen=True)
class Reach:
    """Steps after which a loss will be reached."""

    step: int
    low: int
    high: int | None
    """By the fits that are nearly as good as the best; None: one of them never gets there."""


_FLOORS = 60
_NEARLY = 1.1
"""Times the squared error of the best fit."""
_FARTHEST = 1e3
"""Times the steps made so far."""


def reach(steps: Sequence[int], losses: Sequence[Nats], target: Nats) -> Reach | None:
    """Fit floor + a·step^-b to the losses (Kaplan et al., arXiv 2001.08361, equation 5.5, for a
    fixed size) and say when it meets the target; None where they are too few, or the best fit
    never gets there. What a schedule still has in store for the loss it cannot know.
    """
    x, y = np.asarray(steps, float), np.asarray(losses, float)
    if len(x) < _LEAST_STEPS or target <= 0:
        return None
    found: list[tuple[float, float | None]] = []
    for floor in np.linspace(0.0, float(y.min()), _FLOORS, endpoint=False):
        slope, start = np.polyfit(np.log(x), np.log(y - floor), 1)
        error = float(np.square(np.exp(start + slope * np.log(x)) + floor - y).sum())
        meets = slope < 0 and target > floor
        far = (np.log(target - floor) - start) / slope if meets else np.inf
        found.append((error, float(np.exp(far)) if far < np.log(_FARTHEST * x[-1]) else None))
    least = min(error for error, _ in found)
    best = next(step for error, step in found if error == least)
    near = [step for error, step in found if error <= _NEARLY * least]
    if best is None:
        return None
    sure = [step for step in near if step is not None]
    return Reach(round(best), round(min(sure)), None if None in near else round(max(sure)))
