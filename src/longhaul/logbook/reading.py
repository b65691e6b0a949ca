"""The journal's readers: from the start, or the last few records at once.

Enters: a run's folder. Leaves: its records in order of attempt and time; torn tails and
damaged lines are passed over and counted.
Never knows: who writes, or whether somebody still does.
"""

import heapq
from collections.abc import Iterator
from itertools import chain, groupby, islice
from pathlib import Path

from longhaul.core.records import Decision, Record, RecordError, from_line
from longhaul.core.strict import MOST_BYTES, lines_backwards, lines_of
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import TORN
from longhaul.logbook.journal_files import JournalFile, journal_files

_NOTHING = b"\0 \t\r\n"
"""What a power cut leaves where bytes were promised and never came."""


class JournalReading:
    """The records of a journal; every iteration reads the files as they are by then.

    Attempts come in their order. Within one, the lines of each author and kind keep theirs and
    are merged by time and step; where both are equal, a step comes before what it led to.

    Args:
        folder: the run.
        steps: read the step files.
        events: read the files of events and decisions, which are small.
    """

    def __init__(self, folder: RunFolder, *, steps: bool = True, events: bool = True) -> None:
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


def read_decisions(folder: RunFolder) -> tuple[list[Decision], int]:
    """Every decision in order, and how many damaged lines stood among them."""
    reading = read_journal(folder, steps=False)
    return [record for record in reading if isinstance(record, Decision)], reading.damaged
