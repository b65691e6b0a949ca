"""Whether data has changed for good, as weights tell that learn nothing while they read it."""

import math
from collections.abc import Sequence
from statistics import fmean, variance

from longhaul.diagnose.cause import Verdict
from longhaul.diagnose.signs import Series, Symptom

_MUCH_OF_IT = 0.25
"""Share of a rise that harder data alone must explain, and that data to come must have too."""
_LEAST_RISE = 0.02
"""Share of a loss: what it must rise by where it is not the loss that stands out."""

_Levels = tuple[float, float, float]
"""Of before, of now, and the lower one of what is to come."""


def changed_for_good(symptom: Symptom, at_rest: Sequence[Series]) -> Verdict | None:
    """Weights that learn nothing find the data hard, as far as one can see: by the loss, or by the
    gradient norm where that stands out. `at_rest`: figures at a learning rate of zero, from
    weights before it: on data of before, of now, and of what is to come, near and far.
    """
    of_gradient = symptom.kind == "gradient-spike"
    losses = [[f.loss for f in series] for series in at_rest]
    norms = [[f.gradient_norm for f in series] for series in at_rest]
    if not _all_finite(losses):
        return None
    rise = symptom.reached - symptom.healthy
    levels = _lasting_rise(losses, _LEAST_RISE * fmean(losses[0]) if of_gradient else rise)
    if levels is not None:
        return _verdict(levels, "loss", ".3f", " nats")
    if not of_gradient or not _all_finite(norms) or min(map(min, norms)) <= 0:
        return None
    # Norms grow by factors.
    logs = [[math.log(norm) for norm in series] for series in norms]
    levels = _lasting_rise(logs, math.log(symptom.reached / symptom.healthy))
    if levels is None:
        return None
    before, now, to_come = map(math.exp, levels)
    return _verdict((before, now, to_come), "gradient norm", ".3g")


def _all_finite(values: Sequence[Sequence[float]]) -> bool:
    return all(math.isfinite(value) for series in values for value in series)


def _lasting_rise(values: Sequence[Sequence[float]], rise: float) -> _Levels | None:
    """Levels, if that of now and of all that is to come lies well above that of before."""
    before, now, *ahead = values
    # Means: where a small share of the text is other, most batches may have none of it.
    usual, level, to_come = fmean(before), fmean(now), min(map(fmean, ahead))
    if level - usual < _MUCH_OF_IT * rise:
        return None
    if to_come - usual < _MUCH_OF_IT * (level - usual):
        return None
    all_ahead = [value for series in ahead for value in series]
    if _errors_apart(now, before) < 2 or _errors_apart(all_ahead, before) < 3:
        return None
    return usual, level, to_come


def _verdict(levels: _Levels, of: str, form: str, unit: str = "") -> Verdict:
    usual, now, to_come = levels
    return Verdict(
        "data",
        "rest",
        f"the data has changed for good: weights from before it, left as they are, have a {of} of "
        f"{now:{form}}{unit} on it, {to_come:{form}} or more on what comes beyond all that would "
        f"be passed over, and {usual:{form}} on what came before",
        {"lasting": 1.0, "usual": usual, "now": now, "to_come": to_come},
    )


def _errors_apart(a: Sequence[float], b: Sequence[float]) -> float:
    """How many standard errors the mean of `a` lies above that of `b` (Welch's t)."""
    error = math.sqrt(variance(a) / len(a) + variance(b) / len(b))
    gap = fmean(a) - fmean(b)
    return gap / error if error else math.copysign(math.inf, gap)
