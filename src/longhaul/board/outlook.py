"""When a run will have made its steps, judged by the pace of its last ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from longhaul.core.units import Seconds

_BLOCKS = 20
_LEAST_STEPS = 10


@dataclass(frozen=True)
class Outlook:
    """Seconds until the last step."""

    left_s: Seconds
    """At the mean pace of the steps looked at, with their evaluations, saves and restarts."""
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
