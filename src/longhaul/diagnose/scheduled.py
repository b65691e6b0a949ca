"""What of a step was scheduled, and whether it is other than before (INCIDENTS H1, H2, H4).

Enters: step records. Leaves: "levels may change from here on". Never knows: any signal.
"""

from longhaul.core.records import StepRecord
from longhaul.diagnose.sign import Change

_JUMP = 1.25
"""Schedules move the learning rate by a few per cent a step at most, once it is warm; a larger
step is a decision, after which other levels are due."""


class Schedule:
    """Remembers the step before."""

    def __init__(self) -> None:
        self._before: StepRecord | None = None

    def changed(self, record: StepRecord) -> Change:
        """What this step brought; nothing at the first."""
        before, self._before = self._before, record
        if before is None:
            return ""
        if (
            record.sequences != before.sequences
            or record.sequence_length != before.sequence_length
            or record.mixture_stage != before.mixture_stage
            or record.attention_window != before.attention_window
        ):
            return "data"
        return "rate" if _rate_jumped(before, record) else ""


def _rate_jumped(before: StepRecord, record: StepRecord) -> bool:
    """The learning rate was changed by a decision, not by its schedule."""
    if before.learning_rate <= 0:
        return False
    ratio = record.learning_rate / before.learning_rate
    if before.warmup or record.warmup:
        # A warm-up only ever raises it.
        return ratio < 1 / _JUMP
    return not 1 / _JUMP <= ratio <= _JUMP
