"""What small runs of the `drill` recipe share."""

from longhaul.core.records import Event, Record

FEW_HELD_OUT = "data.held_out.fraction=0.0005"
"""One document of each source: a run reads all that is held out when it ends, which took most of
the time of a run of some 20 steps."""

HALF_A_BATCH = "batch.sequences=8"
"""Two micro-batches a step instead of four."""
HALF_A_STEP = (HALF_A_BATCH, "evaluation.tokens=1024")
"""With shorter evaluations too: half of a run's time."""


def is_verified(record: Record) -> bool:
    """A checkpoint is whole, read back, and one to go on from."""
    return isinstance(record, Event) and record.data.get("health") == "verified"
