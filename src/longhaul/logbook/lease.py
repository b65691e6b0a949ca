"""The lease: one owner at a time, under an attempt number that only rises (DESIGN rule 9).

`lease/000003.json` is attempt 3, created exclusively, so that of two takers one wins on any file
system. All attempts' files are kept: they are small, and they are the record of who trained.

Enters: a run's folder and a clock. Leaves: the lease, or who holds it.
Never knows: what its owner does with the run.
"""

import getpass
import json
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from longhaul.core.clocks import Clock
from longhaul.core.errors import UsageError
from longhaul.core.files import create_exclusively, write_json
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import FORMAT, RunFolder
from longhaul.logbook.holder import Holder, Place, Verdict, here, judge_holder, this_process
from longhaul.logbook.journal_files import journal_files

_BEAT_S: Seconds = 10.0
_LOOK_EVERY_S: Seconds = 0.5
_LOOKS = 120
"""NFS clients may know the names in a folder for a minute before they ask again."""


class LeaseHeld(UsageError):
    """Another process trains this run."""


class Lease:
    """A lease that this process took."""

    def __init__(self, folder: RunFolder, holder: Holder, clock: Clock) -> None:
        self._folder = folder
        self._holder = holder
        self._clock = clock
        self._lock = threading.Lock()

    @property
    def since(self) -> Seconds:
        """Unix time at which it was taken."""
        return self._holder.since

    @property
    def attempt(self) -> int:
        """The number of this attempt; it names journal files and fences commits."""
        return self._holder.attempt

    def is_ours(self) -> bool:
        """No later attempt has begun. Asked before every commit: who was taken for dead, stops."""
        # On another machine than its taker's this attempt's own file may not be seen yet.
        return not self._released and _newest_attempt(self._folder) <= self.attempt

    def heartbeat(self) -> None:
        """Say that this process lives. Failures are ignored: telemetry never stops training."""
        with self._lock, suppress(OSError):
            if not self._released:
                self._write(replace(self._holder, heartbeat=self._clock.wall()))

    def release(self) -> None:
        """Give the lease back, so that the next start need not wonder."""
        with self._lock, suppress(OSError):
            if not self._released:
                now = self._clock.wall()
                self._write(replace(self._holder, heartbeat=now, released=now))

    def renew(self) -> None:
        """Go on under the next attempt number: what was begun under the old one is fenced.

        Raises:
            LeaseHeld: somebody else has taken the run over.
        """
        with self._lock:
            new = replace(self._holder, attempt=self.attempt + 1, heartbeat=self._clock.wall())
            content = json.dumps(_body(new), indent=2) + "\n"
            if not create_exclusively(_path(self._folder, new.attempt), content.encode()):
                raise LeaseHeld(
                    f"run {self._folder.name}: another attempt has begun, number {new.attempt}",
                    f"`longhaul log {self._folder.name}` shows who trains it",
                )
            self._holder = new

    @contextmanager
    def keep(self, every_s: Seconds = _BEAT_S) -> Iterator["Lease"]:
        """Beat in a thread while the body runs, then release."""
        stop = threading.Event()

        def beat() -> None:
            while not stop.wait(every_s):
                self.heartbeat()

        thread = threading.Thread(target=beat, name="lease-heartbeat", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
            self.release()

    @property
    def _released(self) -> bool:
        return self._holder.released is not None

    def _write(self, holder: Holder) -> None:
        self._holder = holder
        write_json(_path(self._folder, self.attempt), _body(holder))


def acquire(folder: RunFolder, clock: Clock) -> Lease:
    """Take the run's lease under the next attempt number.

    Raises:
        LeaseHeld: a live process has it; the message says who.
        OSError: the lease file cannot be written.
    """
    while True:
        # Journal files count too: an attempt's number must not come again even if somebody
        # cleared the leases away. They are listed before the holder is read: a file that appears
        # later may be that of a holder who has not been judged.
        written = [file.attempt for file in journal_files(folder.journal)]
        judged = refuse_if_held(folder, clock)
        attempt = max([judged, *written]) + 1
        own = this_process(attempt, clock.wall(), user_name(), _command())
        content = json.dumps(_body(own), indent=2) + "\n"
        if create_exclusively(_path(folder, attempt), content.encode()):
            return Lease(folder, own, clock)


def leave_behind(folder: RunFolder, attempt: int, clock: Clock) -> None:
    """Let the next attempt come after this one, which was made elsewhere and is over.

    Raises:
        OSError: the lease file cannot be written.
    """
    folder.leases.mkdir(parents=True, exist_ok=True)
    now = clock.wall()
    over = replace(this_process(attempt, now, user_name(), _command()), released=now)
    create_exclusively(_path(folder, attempt), (json.dumps(_body(over), indent=2) + "\n").encode())


def join(folder: RunFolder, attempt: int, clock: Clock) -> Lease:
    """The lease of an attempt that another process, its supervisor, has taken and keeps.

    It may be another machine's, whose file this one does not see for a while.

    Raises:
        LeaseHeld: a later attempt has begun, or this one cannot be seen.
    """
    for _ in range(_LOOKS):
        holder = newest_holder(folder)
        if holder is not None and holder.attempt >= attempt:
            break
        time.sleep(_LOOK_EVERY_S)
    if holder is None or holder.attempt != attempt:
        raise LeaseHeld(
            f"run {folder.name}: attempt {attempt} is not the newest one",
            f"`longhaul train {folder.path}` goes on with the run",
        )
    return Lease(folder, holder, clock)


def refuse_if_held(folder: RunFolder, clock: Clock) -> int:
    """Let only somebody pass who could take the lease; the attempt that was judged, 0 if none.

    Raises:
        LeaseHeld: a live process has it; the message says who.
    """
    holder = newest_holder(folder)
    if holder is None:
        return 0
    verdict = judge_holder(clock.wall(), holder, here())
    if verdict.live:
        raise LeaseHeld(*_held_message(folder, holder, verdict, clock.wall()))
    return holder.attempt


def newest_holder(folder: RunFolder) -> Holder | None:
    """The holder of the newest attempt, live or not; None before the first."""
    attempt = _newest_attempt(folder)
    if attempt == 0:
        return None
    path = _path(folder, attempt)
    try:
        body = json.loads(path.read_bytes())
        place = Place(**body.pop("place"))
        body.pop("format")
        return Holder(place=place, **body)
    except (ValueError, KeyError, TypeError, AttributeError):
        # Damaged: nobody can be looked up, so the file's age has to tell.
        changed = path.stat().st_mtime
        return Holder(
            attempt=attempt, pid=0, started="", place=Place("an unknown host", "", 0),
            user="unknown", command="unknown", since=changed, heartbeat=changed,
        )  # fmt: skip


def live_holder(folder: RunFolder, clock: Clock) -> Holder | None:
    """Who trains this run now; None if nobody does."""
    holder = newest_holder(folder)
    if holder is None or not judge_holder(clock.wall(), holder, here()).live:
        return None
    return holder


def _held_message(
    folder: RunFolder, holder: Holder, verdict: Verdict, now: Seconds
) -> tuple[str, str]:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
    beat = short_seconds(max(now - holder.heartbeat, 0.0))
    return (
        f"run {folder.name} is being trained by {holder.user}, process {holder.pid} on "
        f"{holder.place.host}, since {since} (attempt {holder.attempt}, heartbeat {beat} ago; "
        f"{verdict.reason}): {holder.command}",
        f"`longhaul stop {folder.name}` lets it save and end; `longhaul log {folder.name}` "
        "shows what it does",
    )


def _path(folder: RunFolder, attempt: int) -> Path:
    return folder.leases / f"{attempt:06d}.json"


def _newest_attempt(folder: RunFolder) -> int:
    stems = (path.stem for path in folder.leases.glob("*.json"))
    return max((int(stem) for stem in stems if stem.isdecimal()), default=0)


def _body(holder: Holder) -> dict[str, Any]:
    return {"format": FORMAT} | asdict(holder)


def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())


def _command() -> str:
    return shlex.join(sys.argv)
