"""What became of each fault that was injected into a run, according to its journal."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from longhaul.core.events import EventKind
from longhaul.core.records import Decision, Event, Record, StepRecord
from longhaul.core.units import Seconds
from longhaul.run.drill.fault import Fault, parse_fault
from longhaul.run.drill.laid import Done
from longhaul.supervise.history import WHO as SUPERVISOR

LEADER = "pilot"
"""Rank 0, which judges numbers and checkpoints."""
SCHEDULER = "scheduler"
"""Who starts the same command again: here the drill."""
_LONG_ENOUGH = 100
"""Steps within which a slow rank is to be named."""
_SAME_MOMENT_S: Seconds = 1e-3
_BETWEEN_ATTEMPTS = (EventKind.ATTEMPT_ENDED, EventKind.ATTEMPT_STARTED)
Sign = StepRecord | Event | Decision
"""What reports a fault."""


@dataclass(frozen=True, slots=True)
class Incident:
    """A fault that was injected, and what followed."""

    fault: str
    rank: int
    attempt: int
    step: int
    """That the rank was about to make."""
    time: Seconds
    """Unix time at which it was injected."""
    detect_s: Seconds | None = None
    """Until the journal reports it; None: it never did."""
    recover_s: Seconds | None = None
    """Until the next step was complete of what followed; of storage, until the next checkpoint or
    transfer was. None: nothing followed."""
    caught_up_s: Seconds | None = None
    """Until the first step that had not been made before."""
    steps_lost: int = 0
    """Made before and made again, or left out."""
    by: str = ""
    """Who decided what followed: `supervisor`, `pilot`, `scheduler`; empty: nobody."""
    story: str = ""
    """What was seen, and what followed."""
    named: tuple[int, ...] = ()
    """Ranks that were named; several where nobody could tell which of them is to blame."""
    undone: bool = False
    """Of wrong numbers: the run went back to a state from before them."""


def incidents(done: Sequence[Done], records: Sequence[Record]) -> tuple[Incident, ...]:
    """One for each fault that was injected into a run of this journal, in order."""
    return tuple(_incident(item, parse_fault(item.fault), records) for item in done)


def _incident(done: Done, fault: Fault, records: Sequence[Record]) -> Incident:
    own = done.fault, done.rank, done.attempt, done.step, done.time
    late = [r for r in records if isinstance(r, Sign) and r.time >= done.time - _SAME_MOMENT_S]
    sign = next((record for record in late if _reports(record, done, fault)), None)
    if sign is None:
        why = _why_unnoticed(done, fault, records)
        return Incident(*own, story=why or "the journal does not report it")
    by = LEADER
    if isinstance(sign, Event) and sign.kind in _BETWEEN_ATTEMPTS:
        by = SUPERVISOR if "cause" in sign.data else SCHEDULER
    again = _goes_on(done, sign, fault, records)
    reached = _reached(done, records)
    new = next((s for s in _steps(records) if s.time > done.time and s.step > reached), None)
    return Incident(
        *own,
        detect_s=max(0.0, sign.time - done.time),
        recover_s=None if again is None else max(0.0, again.time - done.time),
        caught_up_s=None if new is None else new.time - done.time,
        steps_lost=_lost(sign, again, reached),
        by=by,
        story="; ".join([_in_words(sign), *_followed(sign, records)]),
        named=_named(sign),
        undone=bool(fault.known.compared)
        and any(
            event.time >= sign.time and event.attempt > done.attempt and event.step < done.step
            for event in _events(records, EventKind.ATTEMPT_STARTED)
        ),
    )


def must_be_noticed(incident: Incident, records: Sequence[Record]) -> bool:
    """Whether a fault that was injected cannot have passed unreported in a run of this journal."""
    return not _why_unnoticed(incident, parse_fault(incident.fault), records)


def _why_unnoticed(done: Done | Incident, fault: Fault, records: Sequence[Record]) -> str:
    """Why it may have passed unreported; empty if it cannot."""
    known, watch = fault.known, next(_events(records, EventKind.MACHINE_WATCH), None)
    if fault.kind == "bitflip-weight" and (watch is None or watch.data["replicas"] == 1):
        return "it has not shown: no other rank holds that weight"
    if known.compared and not _compared(done, fault, records):
        return "it has not shown: no look at the ranks fell into the time in which it could be seen"
    seen = known.must_be_noticed or known.ends_attempt or bool(known.compared)
    if fault.kind == "slow":
        last = fault.last or fault.first
        made = {s.step for s in _steps(records) if s.step <= last and s.time >= done.time}
        looked = watch is not None and bool(watch.data["stragglers"])
        seen = looked and len(made) >= _LONG_ENOUGH
    return "" if seen else "it has not shown"


def _compared(done: Done | Incident, fault: Fault, records: Sequence[Record]) -> list[Event]:
    """Comparisons of what a flipped bit changes, while it was there."""
    last = math.inf if fault.kind == "bitflip-weight" else fault.last or done.step
    return [
        event
        for event in _events(records, EventKind.COMPARED)
        if event.data.get("what") == fault.known.compared
        and event.attempt >= done.attempt
        and done.step <= event.step <= last
        and event.time >= done.time
    ]


def _reports(record: Sign, done: Done, fault: Fault) -> bool:
    known = fault.known
    if known.reported_by:
        return isinstance(record, Event) and record.kind in known.reported_by
    if fault.kind == "bitflip-file":
        if not isinstance(record, Decision) or record.kind != "checkpoint-health":
            return False
        return bool(record.data["health"] == "poisoned")
    if known.ends_attempt:
        return _ends_attempt(record, done)
    if isinstance(record, StepRecord):
        return fault.kind == "nan" and record.masked
    if record.kind == EventKind.MACHINE_VERDICT:
        return done.rank in (*record.data.get("ranks", ()), *record.data.get("among", ()))
    if fault.kind == "slow":
        return False
    recovers = isinstance(record, Decision) and record.kind == "recover"
    return recovers or _ends_attempt(record, done)


def _ends_attempt(record: Sign, done: Done) -> bool:
    if not isinstance(record, Event) or str(record.data.get("reason", "")).startswith("finished"):
        return False
    if record.kind in (EventKind.ATTEMPT_ENDED, EventKind.OUT_OF_MEMORY):
        return record.attempt == done.attempt
    # A supervisor that is killed reports nothing, and its workers may have had no time to.
    return record.kind == EventKind.ATTEMPT_STARTED and record.attempt > done.attempt


def _goes_on(done: Done, sign: Sign, fault: Fault, records: Sequence[Record]) -> Record | None:
    later = [record for record in records if record.time >= sign.time and record is not sign]
    if fault.known.over_with:
        return next(_events(later, *fault.known.over_with), None)
    if _is_end(sign):
        return next((s for s in _steps(later) if s.attempt > done.attempt), None)
    return next((s for s in _steps(later) if not s.masked), None)


def _is_end(record: Record) -> bool:
    if not isinstance(record, Event):
        return False
    corrupt = record.kind == EventKind.MACHINE_VERDICT and record.data.get("kind") == "corrupt"
    return corrupt or record.kind in (*_BETWEEN_ATTEMPTS, EventKind.OUT_OF_MEMORY)


def _reached(done: Done, records: Sequence[Record]) -> int:
    """The furthest step that was made up to then, and, of its attempt, at all."""
    made = [s.step for s in _steps(records) if s.time <= done.time or s.attempt == done.attempt]
    return max([done.step - 1, *(step for step in made if step <= done.step + 1)])


def _lost(sign: Sign, again: Record | None, reached: int) -> int:
    if isinstance(sign, Decision) and sign.kind == "recover":
        back = sign.data.get("rollback")
        return int(back["from"]) - int(back["to"]) if back else 0
    if isinstance(sign, StepRecord):
        return int(sign.masked)
    if isinstance(again, StepRecord) and _is_end(sign):
        return max(0, reached - (again.step - 1))
    return 0


def _in_words(sign: Sign) -> str:
    """A record's own reason: shorter than a line of the log, which would repeat the step."""
    if isinstance(sign, StepRecord):
        return f"step {sign.step} was masked"
    if isinstance(sign, Decision):
        return sign.reason
    if sign.kind == EventKind.ATTEMPT_STARTED:
        return "started again, after nobody had reported an end"
    reason = sign.data.get("reason") or sign.data.get("message") or sign.kind
    poisoned = sign.data.get("poisoned")
    return f"{reason}" + ("" if poisoned is None else f"; step {poisoned} poisoned")


def _named(sign: Sign) -> tuple[int, ...]:
    if not isinstance(sign, Event):
        return ()
    if sign.kind == EventKind.MACHINE_VERDICT:
        return tuple(sign.data["ranks"]) or tuple(sign.data.get("among", ()))
    rank = sign.data.get("rank")
    return () if rank is None else (int(rank),)


def _followed(sign: Sign, records: Sequence[Record]) -> Iterator[str]:
    """What was done about a verdict on ranks, and about nodes."""
    if not isinstance(sign, Event):
        return
    later = [record for record in records if record.time >= sign.time]
    verdict = sign.kind == EventKind.MACHINE_VERDICT
    if verdict and not sign.data.get("ranks"):
        yield "nobody could be named"
    if verdict and sign.data.get("kind") == "straggler":
        drained = next(_events(later, EventKind.NODE_DRAINED), None)
        yield str(drained.data["reason"]) if drained else "reported, and trained on with it"
        return
    world = next(_events(later, EventKind.ATTEMPT_BEGAN), None)
    start = next(_events(later, EventKind.ATTEMPT_STARTED), None)
    if start is not None and start.attempt > sign.attempt and (verdict or world is not None):
        yield f"went on from step {start.step}"
    if world is not None and world.attempt > sign.attempt:
        yield f"on nodes {', '.join(node['name'] for node in world.data['nodes'])}"


def _events(records: Sequence[Record], *kinds: str) -> Iterator[Event]:
    return (record for record in records if isinstance(record, Event) and record.kind in kinds)


def _steps(records: Sequence[Record]) -> Iterator[StepRecord]:
    return (record for record in records if isinstance(record, StepRecord))
