"""The lease: one owner at a time, under an attempt number that only rises.

`lease/000003.json` is attempt 3, created exclusively, so that of two takers one wins on any file
system. All attempts' files are kept: they are small, and they are the record of who trained.
"""

import errno
import getpass
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from longhaul.core.addresses import scrubbed
from longhaul.core.clocks import Clock
from longhaul.core.errors import NeedsPerson, UsageError
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.holder import (
    STALE_S,
    Holder,
    Place,
    create_lease,
    here,
    judge_holder,
    lease_path,
    newest_attempt,
    owner_of,
    read_holder,
    this_process,
    write_holder,
)
from longhaul.logbook.reading import journal_files

_BEAT_S: Seconds = 10.0
_LOOK_EVERY_S: Seconds = 0.5
_LOOKS = 120
"""NFS clients may know the names in a folder for a minute before they ask again."""
GONE_S: Seconds = 10.0
"""So long a folder must be away before its run ends: a file system that is mounted anew comes back
sooner. Nothing is written there meanwhile."""
_LOOK_GONE_EVERY_S: Seconds = 1.0


class LeaseHeld(UsageError):
    """Another process trains this run."""


class RunGone(NeedsPerson):
    """The run's folder was deleted, moved away, or given to another run, under its trainer, for the
    reason that `Lease.gone` gives; `elsewhere` is the newest step that a remote tier has.
    """

    def __init__(
        self, folder: RunFolder, why: str, reached: int | None, elsewhere: int | None = None
    ) -> None:
        where = "" if reached is None else f" at step {reached}"
        kept = "what it held is lost unless you moved it"
        if elsewhere is not None:
            kept += f"; step {elsewhere} is in the remote tier, from which the same command goes on"
        super().__init__(
            f"{folder.path}: the folder is not this run's any more ({why}); training ends{where}, "
            "and nothing more is written there",
            f"{kept}. Moved: `longhaul train` and the new path go on with it. "
            "Deleted: the same command begins anew",
        )


class Lease:
    """A lease that this process took, or that its supervisor took for it."""

    def __init__(self, folder: RunFolder, holder: Holder, clock: Clock) -> None:
        self._folder = folder
        self._holder = holder
        self._clock = clock
        self._lock = threading.Lock()
        self._gone_since: Seconds | None = None
        self._looked: Seconds = -1e9

    @property
    def since(self) -> Seconds:
        """Unix time at which it was taken."""
        return self._holder.since

    @property
    def attempt(self) -> int:
        """The number of this attempt; it names journal files and fences commits."""
        return self._holder.attempt

    def is_ours(self) -> bool:
        """The run is still here, and no later attempt has begun; asked before every commit."""
        if self._released or self.gone():
            return False
        # On another machine than its taker's a newer attempt's file may not be seen yet.
        return newest_attempt(self._folder) <= self.attempt

    def may_decide(self) -> bool:
        """The same for decisions, which wait (FileNotFoundError) where the folder is away."""
        if why := self.gone():
            raise FileNotFoundError(errno.ENOENT, why, str(self._folder.path))
        return self.is_ours()

    def gone(self) -> str:
        """Why the folder is not that of the run whose lease this is; empty if it is.

        A file that cannot be read just now counts as there: outages are survived.
        """
        # An attempt's number alone would not tell: a new run in the same place counts from 1 too.
        path = lease_path(self._folder, self.attempt)
        try:
            self._folder.identity.stat()
            there = read_holder(path)
        except FileNotFoundError as error:
            return f"{error.filename} is missing"
        except OSError:
            return ""
        if there is None or owner_of(there) == owner_of(self._holder):
            return ""
        return f"process {there.pid} on {there.place.host} has begun another run in its place"

    def refuse_if_gone(
        self,
        reached: int | None,
        elsewhere: Callable[[], int | None] = lambda: None,
        after_s: Seconds = GONE_S,
    ) -> None:
        """Let only pass who may go on, or a RunGone: the folder has been away for `after_s`, or is
        another run's. It says the step reached, and the newest one in a remote tier. Unless
        `after_s` is 0, this looks once a second at most.
        """
        now = self._clock.monotonic()
        if after_s and now - self._looked < _LOOK_GONE_EVERY_S:
            return
        self._looked, why = now, self.gone()
        if not why:
            self._gone_since = None
            return
        if self._gone_since is None:
            self._gone_since = now
        if now - self._gone_since >= after_s:
            raise RunGone(self._folder, why, reached, elsewhere())

    def held_at(self, attempt: int) -> bool:
        """Whether an attempt was made under this lease: renewed since, it is the same one."""
        if attempt == self.attempt:
            return True
        try:
            then = read_holder(lease_path(self._folder, attempt))
        except OSError:
            return False
        return then is not None and owner_of(then) == owner_of(self._holder)

    def heartbeat(self) -> None:
        """Say that this process lives. Failures are ignored: telemetry never stops training."""
        with self._lock, suppress(OSError):
            if not self._released and not self.gone():
                self._write(replace(self._holder, heartbeat=self._clock.wall()))

    def release(self) -> None:
        """Give the lease back, so that the next start need not wonder."""
        with self._lock, suppress(OSError):
            if not self._released and not self.gone():
                now = self._clock.wall()
                self._write(replace(self._holder, heartbeat=now, released=now))

    def renew(self) -> None:
        """Go on under the next attempt number: what was begun under the old one is fenced.

        Raises:
            RunGone: the run's folder is away, or another run's.
            LeaseHeld: somebody else has taken the run over.
            OSError: the lease file cannot be written, not even with the space kept in reserve.
        """
        with self._lock:
            newer = newest_attempt(self._folder) > self.attempt
            if not newer and (why := self.gone()):
                raise RunGone(self._folder, why, None)
            new = replace(self._holder, attempt=self.attempt + 1, heartbeat=self._clock.wall())
            if newer or not create_lease(self._folder, new):
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
        write_holder(self._folder, holder)


def acquire(folder: RunFolder, clock: Clock, silent: Holder | None = None, after: int = 0) -> Lease:
    """Take the run's lease under the next attempt number, one above `after` at least; `silent` is a
    holder that `watched_silent` has found dead. LeaseHeld says what live process has it; OSError if
    the lease file cannot be written.
    """
    while True:
        # Journal files count too: an attempt's number must not come again even if somebody
        # cleared the leases away. They are listed before the holder is read: a file that appears
        # later may be that of a holder who has not been judged.
        written = [file.attempt for file in journal_files(folder.journal)]
        judged = refuse_if_held(folder, clock, silent)
        attempt = max([judged, after, *written]) + 1
        own = this_process(attempt, clock.wall(), user_name(), _command())
        if create_lease(folder, own):
            return Lease(folder, own, clock)


def leave_behind(folder: RunFolder, attempt: int, clock: Clock) -> None:
    """Let the next attempt come after this one, which was made elsewhere and is over."""
    folder.leases.mkdir(parents=True, exist_ok=True)
    now = clock.wall()
    create_lease(folder, replace(this_process(attempt, now, user_name(), _command()), released=now))


def join(folder: RunFolder, attempt: int, clock: Clock) -> Lease:
    """The lease of an attempt that another process, its supervisor, has taken and keeps. It may be
    another machine's, whose file this one does not see for a while. LeaseHeld if a later attempt
    has begun, or this one cannot be seen.
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


def watched_silent(
    folder: RunFolder, clock: Clock, notify: Callable[[str], None] = lambda text: None
) -> Holder | None:
    """A holder whose machine seems to have been restarted, if it gives no sign for as long as a
    live one must; else None.

    So a restart that a scheduler makes as it boots a node again is not refused for being too fast,
    nor does it matter by how far a machine's clock is off after its boot.
    """
    first = newest_holder(folder)
    if first is None or not judge_holder(clock.wall(), first, here()).restarted:
        return None
    notify(
        f"run {folder.name} was trained by process {first.pid} on {first.place.host}, which was "
        f"restarted, or is another machine of that name: waiting up to {short_seconds(STALE_S)} "
        "for its heartbeat"
    )
    deadline = clock.monotonic() + STALE_S
    while clock.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
        now = newest_holder(folder)
        if now != first:
            return None
        if not judge_holder(clock.wall(), now, here()).live:
            break
    return first


def refuse_if_held(folder: RunFolder, clock: Clock, silent: Holder | None = None) -> int:
    """The attempt that was judged, 0 if none; LeaseHeld says which live process has the lease."""
    holder = newest_holder(folder)
    if holder is None:
        return 0
    verdict = judge_holder(clock.wall(), holder, here())
    if verdict.live and holder != silent:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.since))
        beat = short_seconds(max(clock.wall() - holder.heartbeat, 0.0))
        raise LeaseHeld(
            f"run {folder.name} is being trained by {holder.user}, process {holder.pid} on "
            f"{holder.place.host}, since {since} (attempt {holder.attempt}, heartbeat {beat} ago; "
            f"{verdict.reason}): {holder.command}",
            f"`longhaul stop {folder.name}` lets it save and end; `longhaul log {folder.name}` "
            "shows what it does",
        )
    return holder.attempt


def newest_holder(folder: RunFolder) -> Holder | None:
    """The holder of the newest attempt, live or not; None before the first."""
    attempt = newest_attempt(folder)
    if attempt == 0:
        return None
    path = lease_path(folder, attempt)
    holder = read_holder(path)
    if holder is None:
        # Damaged: nobody can be looked up, so the file's age has to tell.
        changed = path.stat().st_mtime
        return Holder(
            attempt=attempt, pid=0, started="", place=Place("an unknown host", "", 0),
            user="unknown", command="unknown", since=changed, heartbeat=changed,
        )  # fmt: skip
    return holder


def live_holder(folder: RunFolder, clock: Clock) -> Holder | None:
    """Who trains this run now; None if nobody does."""
    holder = newest_holder(folder)
    if holder is None or not judge_holder(clock.wall(), holder, here()).live:
        return None
    return holder


def user_name() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())


def _command() -> str:
    return shlex.join(scrubbed(word) for word in sys.argv)
