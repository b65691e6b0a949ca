"""Whether data has changed for good, as weights tell that learn nothing while they read it."""

import math
from collections.abc import Sequence
from statistics import fmean, variance

from longhaul.diagnose.cause import Verdict
from longhaul.diagnose.signs import Series, Symptom

_MUCH_OF_IT = 0.25
"""Share of a rise that harder data alone must explain, and that data to come must have too."""


def changed_for_good(symptom: Symptom, at_rest: Sequence[Series]) -> Verdict | None:
    """Weights that learn nothing find the data hard, as far as one can see.

    Args:
        symptom: of a loss.
        at_rest: figures at a learning rate of zero, from weights before it: on data of before, of
            now, and of what is to come, near and far.
    """
    before, now, *ahead = ([f.loss for f in series] for series in at_rest)
    if not all(math.isfinite(loss) for losses in (before, now, *ahead) for loss in losses):
        return None
    # Means: where a small share of the text is other, most batches may have none of it.
    usual, level, to_come = fmean(before), fmean(now), min(map(fmean, ahead))
    if level - usual < _MUCH_OF_IT * (symptom.reached - symptom.healthy):
        return None
    if to_come - usual < _MUCH_OF_IT * (level - usual):
        return None
    all_ahead = [loss for losses in ahead for loss in losses]
    if _errors_apart(now, before) < 2 or _errors_apart(all_ahead, before) < 3:
        return None
    return Verdict(
        "data",
        "rest",
        f"the data has changed for good: weights from before it, left as they are, have a loss of "
        f"{level:.3f} nats on it, {to_come:.3f} or more on what comes beyond all that would be "
        f"passed over, and {usual:.3f} on what came before",
        {"lasting": 1.0, "usual": usual, "now": level, "to_come": to_come},
    )


def _errors_apart(a: Sequence[float], b: Sequence[float]) -> float:
    """How many standard errors the mean of `a` lies above that of `b` (Welch's t)."""
    error = math.sqrt(variance(a) / len(a) + variance(b) / len(b))
    gap = fmean(a) - fmean(b)
    return gap / error if error else math.copysign(math.inf, gap)
