"""What a run, and each of its segments, amounts to: the rows of `runs` and `tree`.

Enters: a run's folder. Leaves: frozen summaries. Never knows: how they are shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb

from longhaul.core.clocks import Clock, goodput
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Nats, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import live_holder
from longhaul.logbook.queries import connect
from longhaul.logbook.reading import read_journal, read_last
from longhaul.logbook.segments import read_segments

State = Literal["new", "live", "finished", "stopped", "dead"]


@dataclass(frozen=True)
class RunSummary:
    """One run at a glance."""

    name: str
    state: State
    """live: a process holds the lease. finished, stopped: the last attempt said so. dead: it
    said nothing."""
    step: int
    """Updates made by the last attempt that made any."""
    total_steps: int | None
    loss: Nats | None
    """Training loss of the last step."""
    validation_loss: Nats | None
    segments: int
    goodput: float
    """`core.clocks.goodput` over all attempts; NaN before any second is booked."""
    seen: Seconds | None
    """Unix time of the last record."""


@dataclass(frozen=True)
class Stretch:
    """The steps of one segment."""

    segment: str
    first_step: int
    last_step: int
    learning_rate: float
    """At the last step."""
    loss: Nats
    """At the last step."""
    redone: int = 0
    """How many of its steps an earlier attempt or segment had made already and lost."""


def summarize(folder: RunFolder, clock: Clock) -> RunSummary:
    """One run at a glance; its steps are added up by DuckDB, not read one by one."""
    events = list(read_journal(folder, steps=False))
    last = read_last(folder, 1, events=False)
    step = last[0] if last and isinstance(last[0], StepRecord) else None
    starts = [e for e in events if isinstance(e, Event) and e.kind == "attempt-started"]
    with connect(folder) as connection:
        spent = time_by_bucket(connection)
    return RunSummary(
        name=folder.name,
        state=run_state(events, live=live_holder(folder, clock) is not None),
        step=step.step if step else 0,
        total_steps=starts[-1].data.get("total_steps") if starts else None,
        loss=step.loss if step else None,
        validation_loss=last_validation_loss(events),
        segments=len(read_segments(folder)),
        goodput=goodput(spent),
        seen=max((record.time for record in [*events[-1:], *last]), default=None),
    )


def run_state(events: Sequence[Record], *, live: bool) -> State:
    """The state of a run from its events and whether somebody holds its lease."""
    if live:
        return "live"
    kinds = [e.kind for e in events if isinstance(e, Event)]
    starts = [number for number, kind in enumerate(kinds) if kind == "attempt-started"]
    if not starts:
        return "new"
    since = kinds[starts[-1] :]
    if "finished" in since:
        return "finished"
    return "stopped" if "attempt-ended" in since else "dead"


def last_validation_loss(events: Sequence[Record]) -> Nats | None:
    """The loss of the newest evaluation; None before the first."""
    for event in reversed(events):
        if isinstance(event, Event) and event.kind in ("evaluation", "finished"):
            loss = event.data.get("loss")
            if loss is not None:
                return float(loss)
    return None


def stretches(connection: duckdb.DuckDBPyConnection) -> dict[str, Stretch]:
    """Segment → its steps, for every segment that made one."""
    rows = connection.execute(
        "SELECT segment, min(step), max(step), "
        "last(learning_rate ORDER BY attempt, step), last(loss ORDER BY attempt, step), "
        "count(*) FILTER (redone) FROM steps GROUP BY segment"
    ).fetchall()
    return {row[0]: Stretch(*row) for row in rows}


def time_by_bucket(connection: duckdb.DuckDBPyConnection) -> dict[str, Seconds]:
    """Bucket → seconds over the whole run."""
    return _sums(connection, "e.key", "GROUP BY 1")


def time_by_segment(connection: duckdb.DuckDBPyConnection) -> dict[str, Seconds]:
    """Segment → seconds booked by its records, idle time before a restart left out."""
    return _sums(connection, "segment", "WHERE e.key <> 'idle' GROUP BY 1")


def _sums(connection: duckdb.DuckDBPyConnection, key: str, rest: str) -> dict[str, Seconds]:
    booked = (
        "SELECT segment, unnest(map_entries(seconds)) AS e FROM steps UNION ALL "
        "SELECT segment, unnest(map_entries(seconds)) AS e FROM events WHERE seconds IS NOT NULL"
    )
    rows = connection.execute(f"SELECT {key}, sum(e.value) FROM ({booked}) {rest}").fetchall()
    return {key: seconds for key, seconds in rows if seconds is not None}
