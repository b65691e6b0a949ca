"""A rank's sign of life, `workers/RANK.progress`: a line written over in place by one `pwrite`."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from longhaul.core.clocks import Bucket
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder

Phase = Literal["prepare", "start-up", "compile", "step", "evaluation", "save"]
"""`prepare`: text is made ready, which takes a second or a day. All else has a deadline."""
PHASES: tuple[Phase, ...] = get_args(Phase)
PHASE_OF: dict[Bucket, Phase] = {
    "prepare": "prepare",
    "start-up": "start-up",
    "restart": "start-up",
    "detection": "start-up",  # replays of steps, before an action; comparing ranks
    "compile": "compile",
    "training": "step",
    "redone": "step",
    "data_wait": "step",
    "evaluation": "evaluation",
    "checkpoint_stall": "save",
}
"""Where a rank's seconds go (`core.clocks`), its phase is known."""
_WIDTH_BYTES = 96
_SIGN_EVERY_S: Seconds = 0.1
"""Between two signs of the same: each micro-batch of a tiny model would pay for a write."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one rank last said."""

    phase: Phase
    step: int
    sign: int
    """Counts what was written: another number is another sign of life."""
    monotonic: Seconds
    """When it was written; comparable between the processes of one machine since its boot."""
    wall: Seconds


class ProgressFile:
    """The writer; one a rank, in its main thread. A full disk or lost folder is no error."""

    def __init__(self, path: Path) -> None:
        self._phase: Phase = "start-up"
        self._written: Seconds = 0.0
        self._step = 0
        self._sign = 0
        self._descriptor = -1
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        self.enter("start-up", 0)

    def enter(self, phase: Phase, step: int | None = None) -> None:
        """Say that `phase` begins or goes on; `step`: updates made, as before when absent."""
        self._phase = phase
        self._step = self._step if step is None else step
        self._sign += 1
        self._written = time.monotonic()
        line = f"{phase} {self._step} {self._sign} {self._written:.6f} {time.time():.6f}"
        with suppress(OSError):
            os.pwrite(self._descriptor, f"{line:<{_WIDTH_BYTES - 1}}\n".encode(), 0)

    def reach(self, step: int) -> None:
        """Say how many updates are made."""
        self.enter(self._phase, step)

    def track(self, bucket: Bucket) -> None:
        """Say that time goes to `bucket`: written at a new phase, or a while after the last."""
        phase = PHASE_OF.get(bucket, self._phase)
        if phase != self._phase or time.monotonic() - self._written >= _SIGN_EVERY_S:
            self.enter(phase)

    def close(self) -> None:
        """Close the file; nothing is written afterwards."""
        with suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = -1


def progress_path(folder: RunFolder, rank: int) -> Path:
    """Where rank `rank` of a run writes."""
    return folder.workers / f"{rank}.progress"


def read_progress(path: Path) -> Progress | None:
    """What a rank last said; None if it has said nothing yet, or is just writing."""
    try:
        phase, step, sign, monotonic, wall = path.read_text(encoding="ascii").split()
        if phase not in PHASES:
            return None
        return Progress(phase, int(step), int(sign), float(monotonic), float(wall))
    except (OSError, ValueError):
        return None
