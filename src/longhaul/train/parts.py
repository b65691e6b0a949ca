"""What a trainer works with, and under which name it writes."""

from dataclasses import dataclass

from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.core.clocks import Clock, TimeBuckets
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.parallel.world import Ranks
from longhaul.train.state import Progress
from longhaul.train.step import TrainingStep


@dataclass(frozen=True)
class Parts:
    """What a trainer works with; made by `run/`, owned by it."""

    step: TrainingStep
    progress: Progress
    batches: BatchReader
    dataset: Dataset
    saver: Saver
    snapshots: SnapshotRing
    time_buckets: TimeBuckets
    clock: Clock
    ranks: Ranks | None = None
    """All that train together; None: one process."""


@dataclass(frozen=True)
class Identity:
    """Under which name records are written."""

    attempt: int
    segment: str
    done_before: int
    """Steps that were made before and lost; making them again is booked as redone."""
