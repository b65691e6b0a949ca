"""The files of a lease: one an attempt, created exclusively, written over by heartbeats.

Enters: a run's folder, holders. Leaves: `lease/NNNNNN.json`, and the holder read back.
Never knows: whether a holder lives.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longhaul.core.files import create_exclusively, write_json
from longhaul.core.strict import entries_of, read_object
from longhaul.core.units import Seconds
from longhaul.logbook.folder import FORMAT, RunFolder
from longhaul.logbook.holder import Holder, Place, holder_of
from longhaul.logbook.reserve import DISK_FULL, Reserve, reserve_path

_LEASE = re.compile(r"(\d{1,18})\.json", re.ASCII)


def lease_path(folder: RunFolder, attempt: int) -> Path:
    """Where an attempt says who makes it."""
    return folder.leases / f"{attempt:06d}.json"


def newest_attempt(folder: RunFolder) -> int:
    """Number of the newest attempt; 0 before the first."""
    found = map(_LEASE.fullmatch, entries_of(folder.leases))
    return max((int(match[1]) for match in found if match), default=0)


def owner_of(holder: Holder) -> tuple[Place, int, str, Seconds]:
    """What stays the same over heartbeats and renewals, and is nobody else's."""
    return holder.place, holder.pid, holder.started, holder.since


def create_lease(folder: RunFolder, holder: Holder) -> bool:
    """Write an attempt's file, on a full disk with the journal's reserve; False if it exists."""
    path, content = lease_path(folder, holder.attempt), json.dumps(_body(holder), indent=2) + "\n"
    try:
        return create_exclusively(path, content.encode())
    except OSError as error:
        if error.errno not in DISK_FULL or not Reserve(reserve_path(folder)).release():
            raise
        return create_exclusively(path, content.encode())


def write_holder(folder: RunFolder, holder: Holder) -> None:
    """Write an attempt's file anew; on a full disk in place, where it needs no more space.

    A reader who comes amidst that finds the file damaged and just changed, which is a live holder.

    Raises:
        OSError: the medium refused.
    """
    path = lease_path(folder, holder.attempt)
    try:
        write_json(path, _body(holder))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        with path.open("r+b") as file:
            file.write((json.dumps(_body(holder), indent=2) + "\n").encode())
            file.truncate()


def read_holder(path: Path) -> Holder | None:
    """The holder that a lease file names; None if the file is damaged.

    Raises:
        OSError: there is no such file, or it cannot be read.
    """
    try:
        return holder_of(read_object(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _body(holder: Holder) -> dict[str, Any]:
    return {"format": FORMAT} | asdict(holder)
