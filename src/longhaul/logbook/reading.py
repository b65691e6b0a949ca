"""The journal's files and their readers: from the start, the last few records at once, or what came
since the last look.

`000003.leader.jsonl` holds the steps of attempt 3, `000003.leader.events.jsonl` its events and
decisions, `000003-0002.pilot.jsonl` the steps after the first file grew too large. Events and
decisions lie apart because they are few: a restart reads all of them, and no gigabyte of steps.
"""

import heapq
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from itertools import chain, groupby, islice
from pathlib import Path

from longhaul.core.records import Record, RecordError, from_line
from longhaul.core.strict import (
    MOST_BYTES,
    MOST_JOURNAL_BYTES,
    DamagedFile,
    entries_of,
    lines_after,
    lines_backwards,
    lines_of,
    open_regular,
)
from longhaul.core.units import Bytes
from longhaul.logbook.folder import RunFolder

TORN = b" <torn>\n"
"""Ends a line whose writing failed half-way, so that it can never be read as a record."""
_NAME = re.compile(
    r"(?P<attempt>\d{6,18})(-(?P<rotation>\d{4,18}))?\.(?P<author>[a-z][a-z0-9_-]*)"
    r"(?P<events>\.events)?\.jsonl",
    re.ASCII,
)


@dataclass(frozen=True, order=True)
class JournalFile:
    """What a journal file's name says; ordered by attempt, then rotation."""

    attempt: int
    rotation: int
    """1 for the first file of an attempt, author and kind."""
    author: str
    """Who writes it: `pilot`, `supervisor` or `evaluator`."""
    events: bool
    """Events and decisions, not steps."""

    @property
    def name(self) -> str:
        """The file's name."""
        rotation = f"-{self.rotation:04d}" if self.rotation > 1 else ""
        kind = ".events" if self.events else ""
        return f"{self.attempt:06d}{rotation}.{self.author}{kind}.jsonl"

    @classmethod
    def parse(cls, name: str) -> "JournalFile | None":
        """What `name` says; None if it is no journal file."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        attempt, rotation = int(match["attempt"]), int(match["rotation"] or 1)
        file = cls(attempt, rotation, match["author"], match["events"] is not None)
        return file if file.name == name else None


def journal_files(journal: Path) -> list[JournalFile]:
    """The journal files in a folder, in order; none if the folder does not exist."""
    names = entries_of(journal)
    return sorted(file for name in names if (file := JournalFile.parse(name)))


_NOTHING = b"\0 \t\r\n"
"""What a power cut leaves where bytes were promised and never came."""


class JournalReading:
    """The records of a journal; every iteration reads the files as they are by then.

    Attempts come in their order. Within one, the lines of each author and kind keep theirs and
    are merged by time and step; where both are equal, a step comes before what it led to.
    """

    def __init__(self, folder: RunFolder, *, steps: bool, events: bool) -> None:
        self._journal = folder.journal
        self._steps = steps
        self._events = events
        self.damaged = 0
        """Lines passed over so far in this iteration that should have been records."""

    def __iter__(self) -> Iterator[Record]:
        self.damaged = 0
        for files in _files_by_attempt(self._journal, self._steps, self._events):
            yield from _merged(
                [chain.from_iterable(map(self._records, stream)) for stream in _streams(files)]
            )

    def _records(self, file: JournalFile) -> Iterator[Record]:
        for line in lines_of(self._journal / file.name):
            record = _record_or_none(line)
            if record is not None:
                yield record
            elif line.strip() and not line.endswith(TORN):
                # A withdrawn line or a torn tail was never confirmed; this one was.
                self.damaged += line.endswith(b"\n") or len(line) == MOST_BYTES


def read_journal(folder: RunFolder, *, steps: bool = True, events: bool = True) -> JournalReading:
    """All records of a run, in order; `damaged` on the result counts lines passed over."""
    return JournalReading(folder, steps=steps, events=events)


class JournalTail:
    """A journal that is read once and then followed: each look returns what has come since."""

    def __init__(self, folder: RunFolder) -> None:
        self._journal = folder.journal
        self._read: dict[JournalFile, int] = {}
        """Bytes of each file that were given."""
        self._inodes: dict[JournalFile, int] = {}
        self._events: dict[tuple[int, str], list[Record]] = {}
        self.damaged = 0
        """Lines of events so far that should have been records."""

    def grown(self) -> Iterator[tuple[JournalFile, bytes]]:
        """The files with whole lines that came since the last look, and these lines.

        A `DamagedFile` where a file is another one than was read, or has lost what was read of it.
        """
        files = journal_files(self._journal)
        if gone := self._inodes.keys() - set(files):
            raise DamagedFile(f"{self._journal / min(gone).name}: it was read, and is gone")
        for file in files:
            path, begin = self._journal / file.name, self._read.get(file, 0)
            with open_regular(path, MOST_JOURNAL_BYTES) as opened:
                found = os.fstat(opened.fileno())
                if found.st_size < begin:
                    now = f"{begin:,} bytes long and has {found.st_size:,} now"
                    raise DamagedFile(f"{path}: it was {now}")
                if self._inodes.setdefault(file, found.st_ino) != found.st_ino:
                    raise DamagedFile(f"{path}: another file of that name was read")
                if found.st_size == begin:
                    continue
                opened.seek(begin)
                lines = opened.read(found.st_size - begin)
            lines = lines[: lines.rfind(b"\n") + 1]
            if lines:
                yield file, lines  # whoever cannot take them in gets them again
            if file.events:
                self._keep(file, lines)
            self._read[file] = begin + len(lines)

    def skip(self, file: JournalFile, size: int) -> None:
        """Take a file's first bytes for read."""
        self._read[file] = size

    @property
    def events(self) -> list[Record]:
        """Events, findings and decisions so far, in the order of `read_journal`."""
        attempts = sorted({attempt for attempt, _ in self._events})
        return [
            record
            for attempt in attempts
            for record in _merged(
                [iter(own) for (of, _), own in sorted(self._events.items()) if of == attempt]
            )
        ]

    def _keep(self, file: JournalFile, lines: bytes) -> None:
        own = self._events.setdefault((file.attempt, file.author), [])
        for line in BytesIO(lines):
            record = _record_or_none(line)
            if record is not None:
                own.append(record)
            elif line.strip() and not line.endswith(TORN):
                self.damaged += 1


def read_last(
    folder: RunFolder, count: int, *, steps: bool = True, events: bool = True
) -> list[Record]:
    """The last `count` records in order, read from the ends of the files."""
    last: list[Record] = []
    for files in reversed(list(_files_by_attempt(folder.journal, steps, events))):
        ends = [_end_of(folder.journal, stream, count) for stream in _streams(files)]
        last = [*_merged([iter(end) for end in ends]), *last][-count:]
        if len(last) == count:
            break
    return last


@dataclass
class Position:
    """How far somebody has read a journal."""

    attempt: int = 0
    """Files of earlier attempts have been read to their ends."""
    ends: dict[str, Bytes] = field(default_factory=dict)
    """Of the others: name → bytes that have been read."""


class JournalFollower:
    """Reads what a journal gains, from `position` on, which it moves record by record.

    Order is that of `read_journal` within a look. What an attempt writes once the next but one has
    begun is not seen: it had been taken for dead long before.
    """

    def __init__(self, folder: RunFolder, position: Position | None = None) -> None:
        self._journal = folder.journal
        self.position = position or Position()

    def new(self) -> Iterator[Record]:
        """The records since the last look. OSError, or a DamagedFile, if a file cannot be read."""
        for files in self._by_attempt():
            streams = [chain.from_iterable(map(self._read, stream)) for stream in _streams(files)]
            for record, name, end in heapq.merge(*streams, key=lambda r: (r[0].time, r[0].step)):
                self.position.ends[name] = end
                yield record
            self._forget_before(files[0].attempt - 1)

    def _by_attempt(self) -> Iterator[list[JournalFile]]:
        files = [f for f in journal_files(self._journal) if f.attempt >= self.position.attempt]
        for _, of_attempt in groupby(files, key=lambda file: file.attempt):
            yield list(of_attempt)

    def _read(self, file: JournalFile) -> Iterator[tuple[Record, str, Bytes]]:
        begin = self.position.ends.get(file.name, 0)
        for line, end in lines_after(self._journal / file.name, begin):
            record = _record_or_none(line)
            if record is not None:
                yield record, file.name, end

    def _forget_before(self, attempt: int) -> None:
        position = self.position
        position.attempt = max(position.attempt, attempt)
        for name in list(position.ends):
            file = JournalFile.parse(name)
            if file is None or file.attempt < position.attempt:
                del position.ends[name]


def _files_by_attempt(journal: Path, steps: bool, events: bool) -> Iterator[list[JournalFile]]:
    wanted = [f for f in journal_files(journal) if (events if f.events else steps)]
    for _, files in groupby(wanted, key=lambda file: file.attempt):
        yield list(files)


def _streams(files: list[JournalFile]) -> list[list[JournalFile]]:
    """The files of one attempt by author and kind, steps first, each in order of rotation."""
    ordered = sorted(files, key=lambda file: (file.events, file.author, file.rotation))
    return [list(group) for _, group in groupby(ordered, key=lambda f: (f.events, f.author))]


def _merged(streams: list[Iterator[Record]]) -> Iterator[Record]:
    return heapq.merge(*streams, key=lambda record: (record.time, record.step))


def _end_of(journal: Path, stream: list[JournalFile], count: int) -> list[Record]:
    lines = chain.from_iterable(lines_backwards(journal / file.name) for file in reversed(stream))
    records = (record for line in lines if (record := _record_or_none(line)) is not None)
    return list(islice(records, count))[::-1]


def _record_or_none(line: bytes) -> Record | None:
    try:
        return from_line(line.strip(_NOTHING))
    except RecordError:
        return None
