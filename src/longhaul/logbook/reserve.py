"""A little disk space set aside, so that a full disk can still be written about.

Enters: a path. Leaves: 4 MiB of really allocated space there, given up on demand.
Never knows: what the space is needed for.
"""

import errno
import os
import shutil
from pathlib import Path

from longhaul.logbook.folder import RunFolder

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a medium that takes no more, for want of space or by a quota."""
RESERVE_BYTES = 4 << 20
_ROOM_BYTES = 4 * RESERVE_BYTES
"""Free space that must be there before space is set aside: the last of it is others' to use."""


def reserve_path(folder: RunFolder) -> Path:
    """Where a run keeps its reserve."""
    return folder.journal / ".reserve"


def why_paused(checkpoints: Path, saved: int | None) -> str:
    """What people are told while a run waits for space.

    Args:
        checkpoints: the run's folder of them.
        saved: step of the newest; None if there is none.
    """
    newest = "none" if saved is None else f"step {saved}"
    return (
        f"the disk of {checkpoints} is full and nothing on it can be done without; the newest "
        f"checkpoint is {newest}"
    )


class Reserve:
    """The file that holds the space. Every method may fail quietly: it is only a precaution."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def release(self) -> bool:
        """Give the space back to the file system; False if none was held."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def refill(self) -> None:
        """Set the space aside unless it is, or unless the disk is nearly full."""
        try:
            if self._path.exists() or shutil.disk_usage(self._path.parent).free < _ROOM_BYTES:
                return
            self._allocate()
        except OSError:
            self.release()

    def _allocate(self) -> None:
        with self._path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            else:
                file.write(bytes(RESERVE_BYTES))
