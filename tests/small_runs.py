"""What small runs of the `drill` recipe share."""

from pathlib import Path

from fakes import FakeClock
from longhaul.core.records import Event, Record, StepRecord
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, open_segment

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


def grown(
    path: Path, steps: int = 30, note: str = "looks well", later: float = 0.0, **started: object
) -> RunFolder:
    """A run of so many steps that nobody trained: one a second, with loss 5 / step. Again: the same
    steps once more, so many seconds `later`.
    """
    begun = not (path / "run.json").exists()
    zero = 1e6 if begun else 1e6 + later
    folder = create_run(path, FakeClock())
    journal = Journal(folder, 1)
    if begun:
        opening = {
            "number": SegmentNumber.parse("1.00"), "attempt": 1, "step": 0, "parent": None,
            "draw": 0, "reason": "start", "settings": {}, "fingerprint": {}, "nodes": ("here",),
            "opened": 1e6,
        }  # fmt: skip
        open_segment(folder, SegmentOpening(**opening))
        data = {"total_steps": 100, "pid": 1, "host": "here", **started}
        journal.append(Event(kind="attempt-started", attempt=1, time=1e6, data=data))
    at = {"attempt": 1, "segment": "1.00"}
    for step in range(1, steps + 1):
        journal.append(
            StepRecord(
                **at, step=step, draw=step, next_draw=step + 1, time=zero + step, loss=5.0 / step,
                gradient_norm=1.0, learning_rate=1e-3, sequences=8, sequence_length=64,
                seconds={"training": 1.0},
            )
        )  # fmt: skip
    told = {"text": note, "who": note}
    journal.append(Event(kind="note", step=steps, time=zero + steps, data=told, **at))
    journal.close()
    return folder
