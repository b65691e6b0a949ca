"""A run's logbook, read once and then followed: a later look costs only what is new since.

Steps lie in a table in memory without their gauges, some 100 bytes each.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir

from longhaul.board.curves import ModelGauges, note_kept, read_model_gauges
from longhaul.board.forecast import dangers, limits_in_force, line_of
from longhaul.core.records import Decision, Event, Record
from longhaul.core.strict import DamagedFile
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.queries import (
    booked_sql,
    empty_connection,
    parquet_file,
    parquet_sql,
    quoted,
    steps_sql,
    usable_parquet,
    with_seconds,
)
from longhaul.logbook.reading import JournalTail, journal_files
from longhaul.logbook.segments import SegmentOpening

_COLUMNS = (
    "attempt, segment, step, time, loss, gradient_norm, learning_rate, loss_scale, masked, redone, "
    "tokens, spent, timed"
)
_GAUGED = (
    "cardinality(coalesce(gauges, MAP {})) + cardinality(coalesce(totals, MAP {})) + "
    "cardinality(coalesce(source_losses, MAP {})) > 0"
)
_MOST_MEMORY = "256MB"
"""Of one run: gauges of a million steps take more while they are read, and are spilled then."""
_SPILLED = "longhaul-board-spilled"
_GAUGES = "segment, step, time, gauges, totals, source_losses"


@dataclass(frozen=True)
class NewSteps:
    """Steps that came since a look, column by column."""

    cursor: int
    """Where the next look goes on."""
    segment: Sequence[str]
    step: Sequence[int]
    loss: Sequence[float]
    gradient_norm: Sequence[float]
    learning_rate: Sequence[float]


class LiveRun:
    """A run that is looked at again and again; threads may share it, one at a time inside."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self.connection = empty_connection()
        """With the tables `steps`, `booked`, and `gauged` (see `model_gauges`), as
        `queries.connect` describes them."""
        spilled = quoted(Path(gettempdir(), _SPILLED))
        self.connection.execute(f"SET temp_directory = {spilled}")
        self.connection.execute(f"SET memory_limit = '{_MOST_MEMORY}'")
        self.steps_read = 0
        """Rows of the table `steps`: a cursor for `steps_since`."""
        self.version = 0
        """Rises with every event, finding or decision."""
        self._tail = JournalTail(folder)
        self._unread_gauges: dict[Path, int] = {}
        """Parquet files whose gauges nobody has asked for yet, and their inodes."""
        rows = with_seconds(steps_sql([]))
        self.connection.execute(f"CREATE TABLE steps AS SELECT {_COLUMNS} FROM ({rows})")
        self.connection.execute(f"CREATE TABLE gauged AS SELECT {_GAUGES} FROM ({rows})")
        self.connection.execute(
            "CREATE TABLE booked "
            "(segment VARCHAR, bucket VARCHAR, seconds DOUBLE, of_event BOOLEAN)"
        )
        self._take_compacted()
        self.refresh()

    def __enter__(self) -> "LiveRun":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @property
    def records(self) -> tuple[Record, ...]:
        """Events, findings and decisions so far, in order."""
        with self.lock:
            return tuple(self._tail.events)

    @property
    def damaged(self) -> int:
        """Lines of the journal's events that cannot be read."""
        return self._tail.damaged

    def refresh(self) -> bool:
        """Read what has been appended; whether that was anything.

        A `DamagedFile` where a file has lost what was read of it, or was compacted anew.
        """
        with self.lock:
            for path, inode in self._unread_gauges.items():
                if not path.is_file() or path.stat().st_ino != inode:
                    raise DamagedFile(f"{path}: another file of that name was read")
            grown = False
            for file, lines in self._tail.grown():
                grown = True
                if file.events:
                    self.version += 1
                else:
                    self._append(lines)
            return grown

    def steps_since(self, cursor: int, most: int = 2000) -> NewSteps:
        """The steps from the row `cursor` on, the last `most` of them."""
        with self.lock:
            end = self.steps_read
            columns = list(NewSteps.__dataclass_fields__)[1:]
            rows = self.connection.execute(
                f"SELECT {', '.join(columns)} FROM steps WHERE rowid >= ? ORDER BY rowid",
                [max(cursor, end - most)],
            ).fetchall()
        return NewSteps(end, *(zip(*rows, strict=True) if rows else ((),) * len(columns)))

    def count_events_in(self) -> None:
        """Let the table `booked` have the seconds of the events, as far as they are read."""
        seconds: dict[tuple[str, str], float] = {}
        for record in self._tail.events:
            if isinstance(record, Event):
                for bucket, spent in record.seconds.items():
                    key = (record.segment, bucket)
                    seconds[key] = seconds.get(key, 0.0) + spent
        self.connection.execute("DELETE FROM booked WHERE of_event")
        if seconds:
            rows = [[*key, spent] for key, spent in seconds.items()]
            self.connection.executemany("INSERT INTO booked VALUES (?, ?, ?, true)", rows)

    def model_gauges(self, openings: Sequence[SegmentOpening]) -> ModelGauges:
        """All gauges, with what is forecast of them; read from compacted files only now."""
        with self.lock:
            if self._unread_gauges:
                rows = (
                    f"SELECT {_GAUGES} FROM ({parquet_sql([*self._unread_gauges])}) WHERE {_GAUGED}"
                )
                self.connection.execute(f"INSERT INTO gauged {rows}")
                self._unread_gauges = {}
            note_kept(self.connection, openings)
            return self._with_dangers(read_model_gauges(self.connection), openings)

    def _with_dangers(self, found: ModelGauges, openings: Sequence[SegmentOpening]) -> ModelGauges:
        records, newest = self.records, max(found.step, default=0)
        decisions = [record for record in records if isinstance(record, Decision)]
        limits = limits_in_force(openings, decisions, newest)
        scale = self.connection.execute(
            "SELECT loss_scale FROM steps ORDER BY rowid DESC LIMIT 1"
        ).fetchone()
        fp16 = scale is not None and scale[0] is not None
        roles = [f"{gauge}.{role}" if role else gauge
                 for gauge, own in found.totals.items() for role in own]  # fmt: skip
        lines = {key: line_of(limits, fp16, key) for key in [*found.layers, *roles]}
        return replace(
            found,
            dangers=dangers(self.connection, records, openings, limits),
            lines={key: line for key, line in lines.items() if line is not None},
        )

    def _take_compacted(self) -> None:
        """Read what was compacted from there, but for its gauges."""
        files = journal_files(self.folder.journal)
        compacted = usable_parquet(self.folder, files)
        if not compacted:
            return
        paths = [parquet_file(self.folder, attempt) for attempt in compacted]
        self._unread_gauges = {path: path.stat().st_ino for path in paths}
        self._insert(f"({with_seconds(parquet_sql(paths))})")
        for file in files:
            if file.name in (sources := compacted.get(file.attempt, {})):
                self._tail.skip(file, sources[file.name])

    def _insert(self, rows: str) -> None:
        booked = booked_sql(rows)
        inserted = self.connection.execute(f"INSERT INTO steps SELECT {_COLUMNS} FROM {rows}")
        self.steps_read += sum(row[0] for row in inserted.fetchall())
        self.connection.execute(
            "INSERT INTO booked SELECT segment, bucket, sum(seconds), false "
            f"FROM ({booked}) GROUP BY segment, bucket"
        )

    def _append(self, lines: bytes) -> None:
        """Take in lines of a file of steps."""
        with NamedTemporaryFile(prefix="longhaul-board-", suffix=".jsonl") as copy:
            copy.write(lines)
            copy.flush()
            rows = with_seconds(steps_sql([Path(copy.name)]))
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE fresh AS {rows}")
        self._insert("fresh")
        self.connection.execute(f"INSERT INTO gauged SELECT {_GAUGES} FROM fresh WHERE {_GAUGED}")
        self.connection.execute("DROP TABLE fresh")
