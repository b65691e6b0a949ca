"""Whether a supervisor may go on with its run: its folder is there, and takes another attempt.

Enters: the lease. Leaves: the next attempt's number, once the disk has space for it; an end with a
reason where the run's folder was taken away.
Never knows: workers, or why another attempt is needed.
"""

import shutil
from collections.abc import Callable

from longhaul.core.clocks import Clock
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import DISK_FULL, Reserve, RunFolder, reserve_path, why_paused
from longhaul.logbook.lease import GONE_S, Lease
from longhaul.supervise.history import Chronicle, usable_checkpoints

RETRY_S: Seconds = 5.0
_LOOK_EVERY_S: Seconds = 0.5
_AFTER_WORKERS_S: Seconds = GONE_S / 2
"""A worker that makes short steps notices first, and knows more to tell."""
_START_BYTES: Bytes = 1 << 20
"""What a worker writes before its first step: a segment, progress, the first records."""

Wait = Callable[[Seconds], bool]
"""Lets time pass; False if somebody wants the run to stop meanwhile."""


class Ownership:
    """A supervisor's hold on its run.

    Args:
        folder: the run.
        lease: held by this process.
        clock: for how long the disk was full.
        say: takes sentences for people.
    """

    def __init__(
        self, folder: RunFolder, lease: Lease, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._lease = lease
        self._clock = clock
        self._say = say
        self._reached: int | None = None
        self._paused: Seconds | None = None

    def look(self, reached: int | None) -> None:
        """Call it now and then while workers run.

        Args:
            reached: updates made, as far as it is known.

        Raises:
            RunGone: the folder has been away for so long that its workers should have ended.
        """
        self._reached = self._reached if reached is None else reached
        self._lease.refuse_if_gone(self._reached, after_s=GONE_S + _AFTER_WORKERS_S)

    def await_folder(self, wait: Wait) -> None:
        """Let nobody write into a folder that is not this run's, nor make it anew.

        Raises:
            RunGone: it does not come back.
        """
        while self._lease.gone():
            self._lease.refuse_if_gone(self._reached)
            if not wait(_LOOK_EVERY_S):
                self._lease.refuse_if_gone(self._reached, after_s=0.0)

    def renew(self, wait: Wait) -> bool:
        """Take the next attempt's number, as soon as there is space for an attempt.

        Returns:
            False if somebody wants the run to stop meanwhile.

        Raises:
            LeaseHeld: somebody else has taken the run over.
            RunGone: the folder is away, or another run's.
            OSError: the lease cannot be written, for another reason than a full disk.
        """
        while not self.try_to_renew():
            if not wait(RETRY_S):
                return False
        return True

    def try_to_renew(self) -> bool:
        """The same without waiting: False where the disk is full, which is told once."""
        self._lease.refuse_if_gone(self._reached, after_s=0.0)
        try:
            full = not self._has_space()
            if not full:
                self._lease.renew()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            full = True
        if full and self._paused is None:
            self._paused = self._clock.monotonic()
            saved = max(usable_checkpoints(self._folder), default=None)
            where = "" if self._reached is None else f" at step {self._reached}"
            self._say(
                f"PAUSED{where}: {why_paused(self._folder.checkpoints, saved)}\n"
                "  → free space there: training then goes on by itself"
            )
        if not full and self._paused is not None:
            waited_s, self._paused = self._clock.monotonic() - self._paused, None
            chronicle = Chronicle(self._folder, self._lease.attempt, self._clock)
            told = {"reason": "there is space again", "waited_s": round(waited_s, 3)}
            chronicle.tell("resumed", self._reached or 0, told, {})
            chronicle.close()
            self._say("there is space again: training goes on")
        return not full

    def _has_space(self) -> bool:
        # Some network file systems do not know their size and say 0.
        for _ in range(2):
            disk = shutil.disk_usage(self._folder.path)
            if not disk.total or disk.free >= _START_BYTES:
                return True
            if not Reserve(reserve_path(self._folder)).release():
                break
        return False
