"""What a run and each of its segments amount to: the rows of `runs`, the branches of `tree`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb

from longhaul.core.clocks import Clock, goodput
from longhaul.core.events import WRITTEN_BESIDE, EventKind
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Nats, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import live_holder
from longhaul.logbook.queries import connect
from longhaul.logbook.reading import read_journal, read_last
from longhaul.logbook.segments import SegmentOpening, by_opening, read_segments

State = Literal["new", "live", "finished", "stopped", "dead"]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One run at a glance."""

    name: str
    state: State
    """live: a process holds the lease. finished, stopped: the last attempt said so. Else dead."""
    step: int
    """Updates made by the last attempt that made any."""
    total_steps: int | None
    loss: Nats | None
    """Training loss of the last step."""
    validation_loss: Nats | None
    bits_per_byte: float | None
    """Of the same evaluation, where bytes are known."""
    segments: int
    spent: Mapping[str, Seconds]
    """Bucket → seconds over all attempts."""
    goodput: float
    """`core.clocks.goodput` of these; NaN before any second is booked."""
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
    seconds_lost: Seconds = 0.0
    """What its steps took that the run's present weights do not hold."""


def summarize(folder: RunFolder, clock: Clock) -> RunSummary:
    """One run at a glance; its steps are added up by DuckDB, not read one by one."""
    events = list(read_journal(folder, steps=False))
    with connect(folder) as connection:
        return summary_of(folder, clock, events, connection)


def summary_of(
    folder: RunFolder, clock: Clock, events: Sequence[Record], connection: duckdb.DuckDBPyConnection
) -> RunSummary:
    """The same from the run's events and decisions, and its journal that `connection` queries."""
    last = read_last(folder, 1, events=False)
    step = last[0] if last and isinstance(last[0], StepRecord) else None
    starts = [e for e in events if isinstance(e, Event) and e.kind == EventKind.ATTEMPT_STARTED]
    evaluated = evaluations(events)
    newest = evaluated[-1].data if evaluated else {}
    bits, spent = newest.get("bits_per_byte"), time_by_bucket(connection)
    signs = [e for e in events if not (isinstance(e, Event) and e.kind in WRITTEN_BESIDE)]
    return RunSummary(
        name=folder.name,
        state=run_state(events, live=live_holder(folder, clock) is not None),
        step=step.step if step else 0,
        total_steps=starts[-1].data.get("total_steps") if starts else None,
        loss=step.loss if step else None,
        validation_loss=float(newest["loss"]) if newest else None,
        bits_per_byte=None if bits is None else float(bits),
        segments=len(read_segments(folder)),
        spent=spent,
        goodput=goodput(spent),
        seen=max((record.time for record in [*signs[-1:], *last]), default=None),
    )


def run_state(events: Sequence[Record], *, live: bool) -> State:
    """The state of a run from its events and whether somebody holds its lease."""
    if live:
        return "live"
    kinds = [e.kind for e in events if isinstance(e, Event)]
    starts = [number for number, kind in enumerate(kinds) if kind == EventKind.ATTEMPT_STARTED]
    if not starts:
        return "new"
    since = kinds[starts[-1] :]
    if "finished" in since:
        return "finished"
    return "stopped" if EventKind.ATTEMPT_ENDED in since else "dead"


def evaluations(records: Sequence[Record]) -> list[Event]:
    """Events that tell of a held-out loss, in order."""
    kinds = (EventKind.EVALUATION, EventKind.FINISHED)
    found = [r for r in records if isinstance(r, Event) and r.kind in kinds]
    return [event for event in found if event.data.get("loss") is not None]


_ORDER = "(attempt << 44) + step"
"""Of records as they were made, as one number: a pair takes twice the time to compare."""


def stretches(connection: duckdb.DuckDBPyConnection, kept: Mapping[str, int]) -> dict[str, Stretch]:
    """Segment → its steps, for every segment that made one; `kept` as of `kept_until`."""
    rows = connection.execute(
        "SELECT segment, min(step), max(step), "
        f"arg_max(learning_rate, {_ORDER}), arg_max(loss, {_ORDER}), "
        "count(*) FILTER (redone), "
        "coalesce(sum(spent) FILTER (step > kept), 0) FROM steps "
        "LEFT JOIN (SELECT unnest(?::VARCHAR[]) AS segment, unnest(?::BIGINT[]) AS kept) "
        "USING (segment) GROUP BY segment",
        [list(kept), list(kept.values())],
    ).fetchall()
    return {row[0]: Stretch(*row) for row in rows}


def time_by_bucket(connection: duckdb.DuckDBPyConnection) -> dict[str, Seconds]:
    """Bucket → seconds over the whole run."""
    return _sums(connection, "bucket", "")


def time_by_segment(connection: duckdb.DuckDBPyConnection) -> dict[str, Seconds]:
    """Segment → seconds booked by its records, idle time before a restart left out."""
    return _sums(connection, "segment", "WHERE bucket <> 'idle'")


def _sums(connection: duckdb.DuckDBPyConnection, key: str, where: str) -> dict[str, Seconds]:
    rows = connection.execute(f"SELECT {key}, sum(seconds) FROM booked {where} GROUP BY 1")
    return {key: seconds for key, seconds in rows.fetchall() if seconds is not None}


Outcome = Literal["running", "finished", "rolled back", "went on", "restarted", "stopped", "died"]
"""went on: under other settings. restarted: another attempt took over. stopped, died: none has."""


@dataclass(frozen=True)
class Branch:
    """One segment, with what became of it."""

    opening: SegmentOpening
    stretch: Stretch | None
    """None if it made no step."""
    outcome: Outcome
    ending: str
    """The outcome in a few words, with its step."""
    kept_until: int
    """Last step whose update the run's present weights hold; steps beyond it were lost."""
    seconds: Seconds
    """Booked by its records, idle time before a restart left out."""

    @property
    def number(self) -> str:
        """As people write it."""
        return str(self.opening.number)

    @property
    def steps_lost(self) -> int:
        """Steps made here and then rolled back, or lost with their process."""
        if self.stretch is None:
            return 0
        return max(0, self.stretch.last_step - max(self.kept_until, self.stretch.first_step - 1))

    @property
    def seconds_lost(self) -> Seconds:
        """What these took."""
        return self.stretch.seconds_lost if self.stretch else 0.0


def kept_until(openings: Sequence[SegmentOpening]) -> dict[str, int]:
    """Segment → last step that the run's present weights hold.

    Of the ancestors of the segment opened last, that from which a later one of them went on; of
    any other, that at which it began.
    """
    known = {opening.number: opening for opening in openings}
    kept = {str(opening.number): opening.step for opening in openings}
    limit = _NO_LIMIT
    current = by_opening(openings)[-1] if openings else None
    seen = set()
    while current is not None and current.number not in seen:
        seen.add(current.number)
        kept[str(current.number)] = limit
        limit = min(limit, current.step)
        current = known.get(current.parent) if current.parent else None
    return kept


def branches(
    openings: Sequence[SegmentOpening],
    made: Mapping[str, Stretch],
    events: Sequence[Record],
    seconds: Mapping[str, Seconds],
    *,
    live: bool,
) -> tuple[Branch, ...]:
    """One branch a segment, by number; see `stretches` and `time_by_segment`."""
    kept = kept_until(openings)
    newest = by_opening(openings)[-1:] if live else ()
    grown = []
    for opening in openings:
        name = str(opening.number)
        children = by_opening([other for other in openings if other.parent == opening.number])
        stretch = made.get(name)
        outcome, ending = _ending(opening, stretch, events, children, running=opening in newest)
        grown.append(
            Branch(
                opening=opening, stretch=stretch, outcome=outcome, ending=ending,
                kept_until=kept[name], seconds=seconds.get(name, 0.0),
            )
        )  # fmt: skip
    return tuple(grown)


def read_branches(
    folder: RunFolder,
    connection: duckdb.DuckDBPyConnection,
    events: Sequence[Record],
    *,
    live: bool,
) -> tuple[Branch, ...]:
    """The branches of the run in `folder`, whose journal `connection` queries."""
    openings = read_segments(folder)
    made, seconds = stretches(connection, kept_until(openings)), time_by_segment(connection)
    return branches(openings, made, events, seconds, live=live)


_NO_LIMIT = (1 << 63) - 1


def _ending(
    opening: SegmentOpening,
    stretch: Stretch | None,
    events: Sequence[Record],
    children: Sequence[SegmentOpening],
    *,
    running: bool,
) -> tuple[Outcome, str]:
    name = str(opening.number)
    own = [e for e in events if isinstance(e, Event) and e.segment == name]
    if any(event.kind == EventKind.FINISHED for event in own):
        return "finished", "finished"
    last = stretch.last_step if stretch else opening.step
    child = children[0] if children else None
    if child is not None and child.attempt == opening.attempt:
        if child.step < last:
            back = f"rolled back at step {last:,} to {child.step:,} as {child.number}"
            return "rolled back", back
        return "went on", f"went on as {child.number}"
    ended = [event for event in own if event.kind == EventKind.ATTEMPT_ENDED]
    word = str(ended[-1].data.get("reason") or "stopped") if ended else "died"
    if child is not None:
        back = f" from step {child.step:,}" if child.step < last else ""
        return "restarted", f"{word} at step {last:,}, restarted as {child.number}{back}"
    if running and not ended:
        return "running", "running"
    return ("stopped" if ended else "died"), f"{word} at step {last:,}"
