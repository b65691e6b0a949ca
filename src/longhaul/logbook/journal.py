"""The journal's writer: append-only JSON lines that never stop training."""

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from longhaul.core.errors import NotOwner
from longhaul.core.events import EventKind
from longhaul.core.files import fsync_folder, naming
from longhaul.core.records import Decision, Event, Record, StepRecord, to_line
from longhaul.logbook.folder import DISK_FULL, Reserve, RunFolder
from longhaul.logbook.reading import TORN, JournalFile, journal_files

_ROTATE_BYTES = 64 << 20
"""Of a file, past which a new one is begun."""
_MOST_HELD_LINES = 20_000
"""Kept in memory while nothing can be written."""
_REFILL_EVERY = 256
"""Records between two looks at whether the reserve must be set aside again."""


class Journal:
    """The journal of one author in one attempt; threads may share it.

    Its files are named by the attempt and the author, such as `pilot` or `supervisor`. The fence
    `still_owner` is asked before every decision; what an attempt records of itself needs none.
    Who only looks on leaves the run's reserve of space to those who train: `uses_reserve`.
    """

    def __init__(
        self,
        folder: RunFolder,
        attempt: int,
        author: str = "pilot",
        *,
        still_owner: Callable[[], bool] = lambda: True,
        uses_reserve: bool = True,
    ) -> None:
        self._attempt = attempt
        self._still_owner = still_owner
        self._reserve = Reserve(folder.reserve) if uses_reserve else None
        if self._reserve is not None:
            self._reserve.refill()
        self._steps = _Stream(folder.journal, attempt, author, False)
        self._events = _Stream(folder.journal, attempt, author, True)
        self._lock = threading.Lock()
        self._until_refill = _REFILL_EVERY
        self._unreported = 0
        """Records lost for good, as too many waited, of which the journal does not tell yet."""

    @property
    def held(self) -> int:
        """Lines that wait in memory because they could not be written."""
        return len(self._events.held) + len(self._steps.held)

    def append(self, record: Record) -> None:
        """Write one line. What cannot be written is held and tried again; nothing is raised."""
        with self._lock:
            stream = self._steps if isinstance(record, StepRecord) else self._events
            stream.held.append(_encoded(record))
            while self.held > _MOST_HELD_LINES:
                # Steps first: the next step tells much the same, no other line repeats an event.
                (self._steps.held or self._events.held).popleft()
                self._unreported += 1
            with suppress(OSError):
                self._write_held(self._events)
                self._write_held(self._steps)
                self._report_dropped(record)
                self._until_refill -= 1
                if self._until_refill <= 0:
                    self._until_refill = _REFILL_EVERY
                    if self._reserve is not None:
                        self._reserve.refill()

    def append_durably(self, record: Event | Decision) -> None:
        """Write one line and bring it onto the medium before returning. OSError if it could not be:
        the line is withdrawn and will not be tried again. NotOwner, and nothing is written, if it
        is a decision and another attempt decides by now.
        """
        # The next attempt has read the ledger already, and would not know of this decision.
        if isinstance(record, Decision) and not self._still_owner():
            raise NotOwner(
                f"attempt {self._attempt} may not decide any more ({record.kind} at step "
                f"{record.step}): another attempt has taken this run over",
                "`longhaul log RUN` shows who trains it",
            )
        with self._lock:
            self._write_held(self._events)
            self._write(self._events, _encoded(record), durably=True)

    def close(self) -> None:
        """Write what is held, as far as possible, and close the files."""
        with self._lock:
            with suppress(OSError):
                self._write_held(self._events)
                self._write_held(self._steps)
            self._events.close()
            self._steps.close()

    def _write_held(self, stream: "_Stream") -> None:
        while stream.held:
            self._write(stream, stream.held[0])
            stream.held.popleft()

    def _write(self, stream: "_Stream", line: bytes, durably: bool = False) -> None:
        try:
            stream.write(line, durably)
        except OSError as error:
            if self._reserve is None or error.errno not in DISK_FULL:
                raise
            if not self._reserve.release():
                raise
            stream.write(line, durably)

    def _report_dropped(self, record: Record) -> None:
        if not self._unreported:
            return
        message = (
            f"{self._unreported} journal records were dropped: "
            "the journal could not be written for too long"
        )
        warning = Event(
            kind=EventKind.WARNING, attempt=self._attempt, segment=record.segment,
            step=record.step, time=record.time,
            data={"message": message, "dropped": self._unreported},
        )  # fmt: skip
        self._write(self._events, _encoded(warning))
        self._unreported = 0


class _Stream:
    """Steps, or events and decisions: a row of files, the last of which is written."""

    def __init__(self, journal: Path, attempt: int, author: str, events: bool) -> None:
        self.held: deque[bytes] = deque()
        self._journal = journal
        self._descriptor: int | None = None
        self._name_is_durable = False
        self._file = JournalFile(attempt, 1, author, events)
        for file in journal_files(journal):
            if replace(file, rotation=1) == replace(self._file, rotation=1):
                self._file = file

    def write(self, line: bytes, durably: bool) -> None:
        """Append a whole line, or nothing and raise OSError."""
        with naming(self._journal / self._file.name):
            self._append(line, durably)

    def _append(self, line: bytes, durably: bool) -> None:
        descriptor = self._opened()
        begin = os.lseek(descriptor, 0, os.SEEK_END)
        if begin >= _ROTATE_BYTES:
            self.close()
            self._file = replace(self._file, rotation=self._file.rotation + 1)
            descriptor, begin = self._opened(), 0
        try:
            _write_whole(descriptor, line)
            if durably:
                os.fsync(descriptor)
                if not self._name_is_durable:
                    fsync_folder(self._journal)
                    self._name_is_durable = True
        except OSError:
            # Take back what got in. Where even that fails, the next opening marks it as torn. The
            # descriptor may be stale for ever after an outage of a network file system.
            with suppress(OSError):
                os.ftruncate(descriptor, begin)
            self.close()
            raise

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.close(self._descriptor)
        self._descriptor = None
        self._name_is_durable = False

    def _opened(self) -> int:
        if self._descriptor is not None:
            return self._descriptor
        path = self._journal / self._file.name
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                _write_whole(descriptor, TORN)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return descriptor


def _encoded(record: Record) -> bytes:
    # A person's reason may hold bytes of another encoding; they must not stop a trainer.
    return to_line(record).encode("utf-8", errors="replace") + b"\n"


def _write_whole(descriptor: int, line: bytes) -> None:
    # One call in practice; a full disk takes a part first and refuses the rest.
    while line:
        line = line[os.write(descriptor, line) :]
