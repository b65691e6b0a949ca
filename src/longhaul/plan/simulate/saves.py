"""The training states that a simulated run can go back to, and how far it had come."""

import math
from dataclasses import dataclass

from longhaul.core.records import Safe
from longhaul.core.units import Seconds

KEPT = 24
"""Newest checkpoints that are kept; of older ones one is kept for every hour, as
`checkpoint.keep_every` does: wrong numbers may be found long after they were saved."""
KEPT_EVERY_S: Seconds = 3600.0
_SNAPSHOTS = 4
"""Snapshots in memory at a time, each older one given up for the newest."""


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint."""

    step: int
    complete: Seconds
    """Time at which it was committed; it does not exist before."""


class Saves:
    """Checkpoints on a shared file system, snapshots in the hosts' memory."""

    def __init__(self, snapshot_steps: int, blocks_per_step: int) -> None:
        self._snapshot_steps = snapshot_steps
        self._blocks = blocks_per_step
        self._saved: list[Saved] = [Saved(0, -math.inf)]
        self._memory_from: int | None = None
        """Step since which the hosts' memory holds what these nodes computed; None: nothing."""

    def add(self, step: int, complete: Seconds) -> None:
        """A save that will be committed."""
        saved = [s for s in self._saved if s.step < step]
        if len(saved) > KEPT and self._is_close(saved[-KEPT - 1], saved[-KEPT]):
            del saved[-KEPT]
        self._saved = [*saved, Saved(step, complete)]

    def _is_close(self, older: Saved, newer: Saved) -> bool:
        return newer.complete - older.complete < KEPT_EVERY_S

    def gone_back(self, step: int) -> None:
        """The run goes on from a step: what was saved later is of another course."""
        self._saved = [saved for saved in self._saved if saved.step <= step] or [
            Saved(0, -math.inf)
        ]

    def forget_after(self, now: Seconds) -> None:
        """A failure: what was being written is no checkpoint."""
        self._saved = [saved for saved in self._saved if saved.complete <= now]

    def poison(self, steps: frozenset[int]) -> None:
        """These must not be gone on from."""
        kept = [saved for saved in self._saved if saved.step not in steps or saved.step == 0]
        self._saved = kept or [Saved(0, -math.inf)]

    def usable(self) -> list[int]:
        """Steps of the checkpoints, rising."""
        return [saved.step for saved in self._saved]

    def memory_lost(self) -> None:
        """A node, or the snapshots in its memory, is gone."""
        self._memory_from = None

    def memory_begins(self, step: int) -> None:
        """These nodes hold what they compute from here on."""
        if self._memory_from is None or self._memory_from > step:
            self._memory_from = step

    def newest_snapshot(self, reached: int) -> int | None:
        """Step of the newest snapshot in memory; None if there is none."""
        if not self._snapshot_steps or self._memory_from is None:
            return None
        newest = reached // self._snapshot_steps * self._snapshot_steps
        return newest if newest > self._memory_from else None

    def states(self, reached: int, now: Seconds) -> tuple[Safe, ...]:
        """All that a decision about the numbers may go back to."""
        found = [
            Safe(saved.step, saved.step * self._blocks, "disk")
            for saved in self._saved
            if saved.complete <= now
        ]
        newest = self.newest_snapshot(reached)
        if newest is not None and self._memory_from is not None:
            for back in range(_SNAPSHOTS):
                step = newest - back * self._snapshot_steps
                if step > self._memory_from:
                    found.append(Safe(step, step * self._blocks, "memory"))
        return tuple(found)
