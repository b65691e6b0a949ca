"""What a run's journal tells a new attempt.

Only events and the ends of step files are read, so a long run starts as fast as a short one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longhaul.core.clocks import Bucket, start_bucket, time_spent
from longhaul.core.events import WRITTEN_BESIDE, EventKind
from longhaul.core.records import Decision, Event, Record, StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import LedgerState, fold_all
from longhaul.logbook.reading import read_journal, read_last
from longhaul.logbook.requests import done_requests
from longhaul.logbook.segments import SegmentOpening, read_segments


@dataclass(frozen=True)
class RunHistory:
    """A run so far."""

    ledger: LedgerState
    damaged_lines: int
    """Lines that cannot be read; one may have been a decision."""
    done_requests: frozenset[str]
    steps_made: int
    """Highest step count that any attempt reached."""
    last_seen: Seconds | None
    """Time of the last record; None in a new run."""
    last_segment: SegmentOpening | None
    ended: str
    """How the last attempt ended; empty if it wrote nothing of that."""
    start_bucket: Bucket
    """What the time of this start counts as."""
    finished: Event | None
    """The newest `finished` event."""
    unopened: Decision | None
    """The last recovery, if its process died before the segment that it asked for was opened."""
    out_of_memory: tuple[Event, ...]
    """Ranks that ran out of memory, while no decision on what they compute at once, in a step or
    in an evaluation, has answered them."""

    @property
    def begun(self) -> bool:
        """An attempt has been made before."""
        return self.last_seen is not None


def read_run_history(folder: RunFolder) -> RunHistory:
    """Read what a new attempt must know."""
    reading = read_journal(folder, steps=False)
    events = list(reading)
    # A rollback leaves the steps it undid behind; they were made all the same.
    left = [int((d.data.get("rollback") or {}).get("from", 0)) for d in _decisions(events)]
    last_steps = [
        record for record in read_last(folder, 1, events=False) if isinstance(record, StepRecord)
    ]
    # Each start writes down how far earlier attempts had come, so one step file is enough.
    starts = _of_kind(events, EventKind.ATTEMPT_STARTED)
    reached = [int(start.data.get("steps_made", 0)) for start in starts]
    attempts = _of_kind(events, EventKind.ATTEMPT_STARTED, EventKind.ATTEMPT_ENDED)
    ended = ""
    if attempts and attempts[-1].kind == EventKind.ATTEMPT_ENDED:
        ended = str(attempts[-1].data.get("reason", ""))
    finished = _of_kind(events, EventKind.FINISHED)
    segments = read_segments(folder)
    signs = [e for e in events if not (isinstance(e, Event) and e.kind in WRITTEN_BESIDE)]
    times = [record.time for record in [*signs[-1:], *last_steps]]
    return RunHistory(
        ledger=fold_all(_decisions(events)),
        damaged_lines=reading.damaged,
        done_requests=done_requests(events),
        steps_made=max([0, *reached, *left, *(record.step for record in last_steps)]),
        last_seen=max(times) if times else None,
        last_segment=segments[-1] if segments else None,
        ended=ended,
        start_bucket=start_bucket(events),
        finished=finished[-1] if finished else None,
        unopened=_unopened(events),
        out_of_memory=_unanswered(events),
    )


def hours_spent(folder: RunFolder) -> float:
    """Hours of all attempts so far, idle time between them left out. Reads the whole journal."""
    spent = time_spent(read_journal(folder))
    return sum(seconds for bucket, seconds in spent.items() if bucket != "idle") / 3600


def is_fork(data: Mapping[str, Any]) -> bool:
    """Whether a recovery opens the next major segment: a person's fork, or a plan B."""
    return "fork" in data["actions"] or bool(data.get("fallback"))


def _unopened(events: list[Record]) -> Decision | None:
    for event in reversed(events):
        if isinstance(event, Event) and event.kind == EventKind.SEGMENT_OPENED:
            return None
        if isinstance(event, Decision) and event.kind == "recover":
            data = event.data
            asked = any(data.get(key) for key in ("rollback", "skip", "set", "reset"))
            return event if asked or is_fork(data) else None
    return None


def _unanswered(events: list[Record]) -> tuple[Event, ...]:
    # What runs out ends its attempt, so an answer comes in a later one.
    answered = {decision.data.get("path"): decision.attempt for decision in _decisions(events)}
    return tuple(
        event
        for event in _of_kind(events, EventKind.OUT_OF_MEMORY)
        if event.attempt >= answered.get(event.data.get("path", "batch.micro_sequences"), 0)
    )


def _decisions(events: list[Record]) -> list[Decision]:
    return [record for record in events if isinstance(record, Decision)]


def _of_kind(events: list[Record], *kinds: EventKind) -> list[Event]:
    return [event for event in events if isinstance(event, Event) and event.kind in kinds]
