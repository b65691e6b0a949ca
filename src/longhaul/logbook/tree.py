"""The tree of a run's segments: what each made, how it ended, and what it cost.

Enters: a run's segments, the steps made in each, its events. Leaves: one `Branch` a segment.
Never knows: how it is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import duckdb

from longhaul.core.records import Event, Record
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.segments import SegmentOpening, by_opening, read_segments
from longhaul.logbook.summary import Stretch, stretches, time_by_segment

Outcome = Literal["running", "finished", "rolled back", "went on", "restarted", "stopped", "died"]
"""went on: under other settings, nothing lost. restarted: its process ended and another attempt
took over. stopped, died: nobody has taken over yet."""


@dataclass(frozen=True)
class Branch:
    """One segment, with what became of it."""

    opening: SegmentOpening
    stretch: Stretch | None
    """None if it made no step."""
    outcome: Outcome
    ending: str
    """The outcome in a few words, with its step."""
    next: str
    """Number of the segment that went on from it; empty if none did."""
    kept_until: int
    """Last step whose update the run's present weights hold; steps beyond it were lost."""
    seconds: Seconds
    """Booked by its records, idle time before a restart left out."""
    seconds_lost: Seconds = 0.0
    """Of these, what its lost steps took."""

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


def kept_until(openings: Sequence[SegmentOpening]) -> dict[str, int]:
    """Segment → last step that the run's present weights hold.

    These are the ancestors of the segment opened last, each up to the step from which a later
    one of them went on. A segment beside that line (before a fork, say) keeps nothing beyond
    the step at which it began.
    """
    known = {opening.number: opening for opening in openings}
    kept = {str(opening.number): opening.step for opening in openings}
    limit = None
    current = by_opening(openings)[-1] if openings else None
    seen = set()
    while current is not None and current.number not in seen:
        seen.add(current.number)
        kept[str(current.number)] = _NO_LIMIT if limit is None else limit
        limit = current.step if limit is None else min(limit, current.step)
        current = known.get(current.parent) if current.parent else None
    return kept


def branches(
    openings: Sequence[SegmentOpening],
    made: Mapping[str, Stretch],
    events: Sequence[Record],
    seconds: Mapping[str, Seconds],
    seconds_lost: Mapping[str, Seconds],
    *,
    live: bool,
) -> tuple[Branch, ...]:
    """One branch a segment, by number.

    Args:
        openings: the run's segments.
        made: segment → its steps (`summary.stretches`).
        events: the run's events and decisions.
        seconds: segment → seconds (`summary.time_by_segment`).
        seconds_lost: segment → seconds of steps beyond `kept_until` (`time_lost`).
        live: somebody holds the run's lease.
    """
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
                next=str(children[0].number) if children else "", kept_until=kept[name],
                seconds=seconds.get(name, 0.0), seconds_lost=seconds_lost.get(name, 0.0),
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
    lost = time_lost(connection, kept_until(openings))
    return branches(
        openings, stretches(connection), events, time_by_segment(connection), lost, live=live
    )


def time_lost(connection: duckdb.DuckDBPyConnection, kept: Mapping[str, int]) -> dict[str, Seconds]:
    """Segment → seconds of its steps beyond the last kept one.

    Args:
        connection: with the view `steps` (`queries.connect`).
        kept: segment → last step kept (`kept_until`).
    """
    if not kept:
        return {}
    rows = connection.execute(
        "SELECT segment, sum(list_sum(map_values(seconds))) FROM steps "
        "JOIN (SELECT unnest(?) AS segment, unnest(?) AS kept) USING (segment) "
        "WHERE step > kept GROUP BY segment",
        [list(kept), list(kept.values())],
    ).fetchall()
    return {segment: seconds for segment, seconds in rows if seconds is not None}


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
    if any(event.kind == "finished" for event in own):
        return "finished", "finished"
    last = stretch.last_step if stretch else opening.step
    child = children[0] if children else None
    if child is not None and child.attempt == opening.attempt:
        if child.step < last:
            return (
                "rolled back",
                f"rolled back at step {last:,} to {child.step:,} as {child.number}",
            )
        return "went on", f"went on as {child.number}"
    ended = [event for event in own if event.kind == "attempt-ended"]
    word = str(ended[-1].data.get("reason") or "stopped") if ended else "died"
    if child is not None:
        back = f" from step {child.step:,}" if child.step < last else ""
        return "restarted", f"{word} at step {last:,}, restarted as {child.number}{back}"
    if running and not ended:
        return "running", "running"
    return ("stopped" if ended else "died"), f"{word} at step {last:,}"
