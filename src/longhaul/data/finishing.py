"""A prepared folder while it is made: under another name, renamed when whole, gone if abandoned."""

import errno
import os
import platform
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from longhaul.core.clocks import RealClock
from longhaul.core.errors import DataError, LonghaulError
from longhaul.core.files import fsync_folder
from longhaul.core.units import short_bytes
from longhaul.data.dataset import open_dataset

_UNFINISHED = ".preparing"
_ABANDONED_S = 24 * 3600.0


@contextmanager
def unfinished(home: Path, name: str) -> Iterator[Path]:
    """A folder to work in, gone afterwards unless it was renamed, whatever happens."""
    marks = f"{os.getpid()}-{platform.node()}-{uuid.uuid4().hex[:8]}"
    folder = home / f"{_UNFINISHED}-{marks}-{name}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def commit(temporary: Path, folder: Path) -> None:
    """Give a finished folder its name, unless somebody else has finished the same one."""
    fsync_folder(temporary)
    for _ in range(3):
        try:
            temporary.rename(folder)
            fsync_folder(folder.parent)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            open_dataset(folder)
            return
        except DataError:
            # A damaged folder is in the way. Renamed first: whoever has it mapped keeps it, and
            # nobody finds it half removed.
            aside = temporary.with_name(f"{temporary.name}-replaced")
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
    raise LonghaulError(f"{folder}: something keeps replacing it with damaged data")


def remove_abandoned(home: Path) -> None:
    """Remove what dead processes left; on another machine, those that changed nothing for a day."""
    here = platform.node()
    for folder in home.glob(f"{_UNFINISHED}-*"):
        process, _, rest = folder.name.removeprefix(f"{_UNFINISHED}-").partition("-")
        if not process.isdecimal():
            continue
        if rest.startswith(f"{here}-"):
            dead = not psutil.pid_exists(int(process))
        else:
            try:
                newest = max(p.stat().st_mtime for p in (folder, *folder.iterdir()))
            except OSError:  # its owner is removing it right now
                continue
            dead = RealClock().wall() - newest > _ABANDONED_S
        if dead:
            shutil.rmtree(folder, ignore_errors=True)


def refused(error: OSError, home: Path) -> LonghaulError:
    """What to tell of a disk that is full or refuses."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        nearest = next(p for p in (home, *home.absolute().parents) if p.exists())
        free = short_bytes(shutil.disk_usage(nearest).free)
        return LonghaulError(
            f"{home}: no space left on this disk while preparing data ({free} free now)",
            "free some space, or keep prepared data on another disk; nothing half-made was left",
        )
    return LonghaulError(
        f"{error.filename or home}: {error.strerror or error}",
        "prepared data needs a folder that can be written to",
    )
