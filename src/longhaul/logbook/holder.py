"""The holder of a lease: its file, and whether it still lives, judged from facts.

There is one file an attempt, created exclusively and written over by heartbeats.
"""

import json
import os
import platform
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field, TypeAdapter

from longhaul.core.files import create_exclusively, write_bytes
from longhaul.core.records import Moment, Whole
from longhaul.core.strict import entries_of, read_object
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import DISK_FULL, FORMAT, Reserve, RunFolder

STALE_S: Seconds = 60.0
"""Age of the last heartbeat beyond which a holder that cannot be looked at counts as dead: six
missed beats. Between hosts this needs clocks that agree within about a minute."""


@dataclass(frozen=True)
class Place:
    """Where process numbers mean the same."""

    host: str
    boot_id: str
    """Changes with every boot; empty where the system tells none."""
    pid_namespace: int
    """Inode of the Linux process namespace: containers on one host differ. 0 elsewhere."""


@dataclass(frozen=True)
class Holder:
    """Who trains, or trained, in one attempt."""

    attempt: Whole
    pid: Annotated[int, Field(strict=True, lt=1 << 31)]
    started: str
    """When the process began, as `process_started` tells it."""
    place: Place
    user: str
    command: str
    since: Moment
    heartbeat: Moment
    released: Moment | None = None


_HOLDER = TypeAdapter(Holder)


@dataclass(frozen=True)
class Verdict:
    """Whether a holder lives, and how one knows."""

    live: bool
    reason: str
    restarted: bool = False
    """Its machine seems to have been restarted, and only a heartbeat that is not old yet speaks
    against it: silence will tell (`lease.watched_silent`)."""


def here() -> Place:
    """The place of this process."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    return Place(
        host=platform.node(),
        boot_id=boot_id.read_text(encoding="ascii").strip() if boot_id.is_file() else "",
        pid_namespace=namespace.stat().st_ino if namespace.exists() else 0,
    )


def process_started(pid: int) -> str | None:
    """When the process `pid` began, in a form to compare; None if it is gone or a zombie."""
    stat = Path(f"/proc/{pid}/stat")
    # Ticks since boot: a start time since 1970 moves when the clock is set, and a live trainer must
    # not look like another process then.
    if stat.parent.parent.joinpath("self").exists():
        try:
            # The command's name comes in parentheses and may itself contain spaces and ")".
            state, *fields = stat.read_bytes().rpartition(b")")[2].split()
        except (OSError, ValueError):
            return None
        return None if state in (b"Z", b"X") else f"{fields[18].decode()} ticks"
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.Error:
        return None


def judge_holder(
    now: Seconds,
    holder: Holder,
    place: Place,
    started: Callable[[int], str | None] = process_started,
) -> Verdict:
    """Whether `holder` still lives, seen at Unix time `now` from `place`."""
    if holder.released is not None:
        return Verdict(False, "it has released the lease")
    if holder.place == place:
        began = started(holder.pid)
        if began is None:
            return Verdict(False, f"process {holder.pid} is gone")
        if began != holder.started:
            return Verdict(False, f"process {holder.pid} is another one by now")
        return Verdict(True, f"process {holder.pid} is running on this machine")
    age = now - holder.heartbeat
    old = f"its last heartbeat is {short_seconds(max(age, 0.0))} old"
    if holder.place.host == place.host and holder.place.boot_id != place.boot_id:
        # Machines that share a file system may share a name as well: cloned images, containers.
        if age > STALE_S:
            return Verdict(False, f"{place.host} has been restarted since, and {old}")
        why = f"{old}: {place.host} was restarted a moment ago, or another machine has its name"
        return Verdict(True, why, restarted=True)
    return Verdict(age <= STALE_S, old)


def this_process(attempt: int, now: Seconds, user: str, command: str) -> Holder:
    """What this process writes about itself when it takes a lease."""
    pid = os.getpid()
    return Holder(
        attempt=attempt, pid=pid, started=process_started(pid) or "", place=here(),
        user=user, command=command, since=now, heartbeat=now,
    )  # fmt: skip


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
    path, content = lease_path(folder, holder.attempt), _as_bytes(holder)
    try:
        return create_exclusively(path, content)
    except OSError as error:
        if error.errno not in DISK_FULL or not Reserve(folder.reserve).release():
            raise
        return create_exclusively(path, content)


def write_holder(folder: RunFolder, holder: Holder) -> None:
    """Write an attempt's file anew; on a full disk in place, where it needs no more space."""
    # A reader amidst that finds the file damaged and just changed, which is a live holder.
    path = lease_path(folder, holder.attempt)
    try:
        write_bytes(path, _as_bytes(holder))
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        with path.open("r+b") as file:
            file.write(_as_bytes(holder))
            file.truncate()


def read_holder(path: Path) -> Holder | None:
    """The holder that a lease file names; None if it is damaged, OSError if it cannot be read."""
    try:
        return _HOLDER.validate_python(read_object(path))
    except ValueError:
        return None


def _as_bytes(holder: Holder) -> bytes:
    return (json.dumps({"format": FORMAT} | asdict(holder), indent=2) + "\n").encode()
