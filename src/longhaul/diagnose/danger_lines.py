"""Danger lines of the thermometers, and why they lie where they lie.

Enters: a gauge's name and the limits. Leaves: its line, or none. Never knows: readings.
"""

import math
from typing import NamedTuple

from longhaul.config.diagnose import GrowthLimits


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
_DENSE_ROLES = {"matrix", "head"}
"""Roles all of whose elements have a gradient at every step. Rows of a table that are seldom read
have tiny second moments, and their ratio has heavy tails in healthy runs."""


def line_of(gauge: str, limits: GrowthLimits, fp16: bool) -> Line | None:
    """The line of `gauge`, which may end in the role of its weights; None if it has none."""
    kind, _, role = gauge.partition(".")
    if kind == "attention_logit_max":
        return Line(
            "with logits as large attention looks at one token only, and the loss follows",
            limits.attention_logit_warning,
            limits.attention_logit_alarm,
        )
    if kind in _OUTPUTS:
        return Line(
            "output logits as large lose their digits in half precision",
            limits.output_logit_warning,
            limits.output_logit_alarm,
        )
    if kind == "second_moment_ratio" and role in _DENSE_ROLES:
        return Line(
            "the optimizer expects smaller gradients than it gets, and steps too far",
            limits.second_moment_warning,
            limits.second_moment_alarm,
            hard=True,
            sudden=True,
            in_a_row=limits.second_moment_readings,
        )
    if gauge == "update_ratio.matrix":
        return Line(
            "weights that are replaced as fast learn nothing that lasts",
            limits.update_ratio_warning,
            hard=True,
            sudden=True,
            in_a_row=limits.readings,
            typical=True,
        )
    if kind in _ACTIVATIONS:
        return _activations(limits, fp16)
    if kind == "weight_norm":
        return Line(
            "healthy weights grow far more slowly at this age",
            exponent=limits.weight_exponent,
            ratio=limits.weight_ratio,
        )
    return None


def _activations(limits: GrowthLimits, fp16: bool) -> Line:
    if fp16:
        return Line(
            "fp16 holds no number beyond 65,504",
            limits.fp16_warning,
            limits.fp16_alarm,
            hard=True,
            exponent=limits.exponent,
            ratio=limits.ratio,
        )
    return Line(
        "healthy gauges grow far more slowly at this age",
        exponent=limits.exponent,
        ratio=limits.ratio,
    )
