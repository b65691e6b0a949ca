"""Frozen group: a role of weights does not train (INCIDENTS N7).

Enters: gauges `update_ratio.ROLE` and `gradient_norm.ROLE` of step records. Leaves: a warning
within the first readings. Never knows: whether somebody froze it on purpose.
"""

from longhaul.config.diagnose import FrozenGroupLimits
from longhaul.core.records import StepRecord
from longhaul.diagnose.sign import HEALTHY, Change, Detector, Mark, Sign, Signs, mark

_UPDATE = "update_ratio."
_GRADIENT = "gradient_norm."


class FrozenGroup(Detector):
    """Counts still readings of each role."""

    def __init__(self, limits: FrozenGroupLimits) -> None:
        self._limits = limits
        self._still: dict[str, list[Mark]] = {}

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Masked steps and a rate of zero update nothing, and say nothing."""
        if not record.totals or record.masked or record.learning_rate <= 0:
            return None
        signs = []
        for gauge, value in record.totals.items():
            if gauge.startswith(_UPDATE):
                role, still = gauge.removeprefix(_UPDATE), value <= self._limits.update_ratio
            elif gauge.startswith(_GRADIENT):
                role, still = gauge.removeprefix(_GRADIENT), value <= self._limits.gradient_norm
            else:
                continue
            marks = self._still.setdefault(gauge, [])
            if not still:
                marks.clear()
                continue
            if len(marks) < self._limits.readings:
                marks.append(mark(record))
            if len(marks) == self._limits.readings:
                signs.append(_sign(role, gauge, value, marks[0]))
        return _one_a_role(signs) or HEALTHY


def _sign(role: str, gauge: str, value: float, first: Mark) -> Sign:
    if gauge.startswith(_GRADIENT):
        sentence = f"No gradient reaches the weights of role {role} since step {first.step}."
    else:
        sentence = (
            f"The weights of role {role} do not train: an update changes them by {value:.2g} of "
            f"their size since step {first.step}, where 1e-3 is usual."
        )
    evidence = {gauge.partition(".")[0]: value}
    return Sign("frozen-group", "warning", first, sentence, role, evidence)


def _one_a_role(signs: list[Sign]) -> tuple[Sign, ...]:
    """Without a gradient there is no update either: told once."""
    return tuple({sign.subject: sign for sign in signs}.values())
