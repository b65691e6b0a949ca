"""Whether the loss bears out a warning that came ahead of it.

Enters: losses of the last steps, and since when something is suspected. Leaves: whether they are
worse than before. Never knows: findings, or what is done about them.
"""

import math
from collections.abc import Sequence
from statistics import median, quantiles

_FEWEST = 8
"""Losses on either side, below which their noise tells more than their level."""
_MOST = 64
"""Losses on either side: harm that began late must not drown in what went well before it."""


def is_worse(losses: Sequence[tuple[int, float]], since: int, begin: int = 0) -> bool | None:
    """Whether half of the last losses lie above three quarters of those before a step; None if too
    few are known. Those are the later half of the losses since, and as many before it. A margin of
    two thirds of a standard deviation of single losses, so that noise is not taken for harm.

    Args:
        losses: (step, nats) of the course that the run stands on, by rising step.
        since: updates made when what is suspected began.
        begin: losses up to this step tell nothing, as those of the warm-up, in which all falls.
    """
    values = {step: loss if math.isfinite(loss) else math.inf for step, loss in losses}
    last = max(values, default=0)
    count = min(max((last - since) // 2, _FEWEST), _MOST)
    before = [values[step] for step in range(max(since - count, begin) + 1, since + 1)
              if step in values]  # fmt: skip
    after = [values[step] for step in range(max(last - count, since) + 1, last + 1)
             if step in values]  # fmt: skip
    if len(before) < _FEWEST or not after:
        return None
    return median(after) > quantiles(before, n=4, method="inclusive")[2]
