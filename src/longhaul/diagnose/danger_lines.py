"""Danger lines of the thermometers, and why they lie where they lie.

Enters: a gauge's name and the limits. Leaves: its line, or none. Never knows: readings.
"""

import math
from typing import NamedTuple

from longhaul.config.diagnose import GrowthLimits


class Line(NamedTuple):
    """From where on a gauge (its absolute value) is dangerous."""

    warning: float
    alarm: float
    why: str

    @property
    def relative(self) -> bool:
        """There is no absolute line: growth is held against the gauge's own past."""
        return math.isinf(self.alarm)


_ACTIVATIONS = {
    "residual_max",
    "residual_min",
    "residual_max_abs",
    "attention_out_max_abs",
    "mlp_out_max_abs",
}
_OUTPUTS = {"output_logit_max", "logsumexp_max", "logsumexp_mean"}
_RELATIVE = _ACTIVATIONS | {"weight_norm"}


def line_of(gauge: str, limits: GrowthLimits, fp16: bool) -> Line | None:
    """The line of `gauge`, which may end in the role of its weights; None if it has none."""
    kind = gauge.partition(".")[0]
    if kind == "attention_logit_max":
        return Line(
            limits.attention_logit_warning,
            limits.attention_logit_alarm,
            "with logits as large attention looks at one token only, and the loss follows",
        )
    if kind in _OUTPUTS:
        return Line(
            limits.output_logit_warning,
            limits.output_logit_alarm,
            "output logits as large lose their digits in half precision",
        )
    if kind == "second_moment_ratio":
        return Line(
            limits.second_moment_warning,
            limits.second_moment_alarm,
            "the optimizer expects smaller gradients than it gets, and steps too far",
        )
    if fp16 and kind in _ACTIVATIONS:
        return Line(limits.fp16_warning, limits.fp16_alarm, "fp16 holds no number beyond 65,504")
    if kind in _RELATIVE:
        return Line(math.inf, math.inf, "healthy gauges grow far more slowly at this age")
    return None
