"""The nodes and ranks of a run as they are now: who trains, who is not well, and whom failures and
verdicts have named.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from longhaul.board.node_health import (
    SPARE,
    Health,
    NodeHealth,
    absent_of,
    is_rank,
    part,
    read_ledger,
    reason_of,
    texts,
    unwell,
    whole,
    world_of,
)
from longhaul.core.events import NODE_EVENTS, EventKind
from longhaul.core.records import Event, Record
from longhaul.core.units import Seconds, count

_KINDS = NODE_EVENTS | {
    EventKind.ATTEMPT_STARTED, EventKind.ATTEMPT_ENDED, EventKind.COMPARED,
    EventKind.MACHINE_VERDICT, EventKind.REPLICA_LOST, EventKind.REPLICA_BACK, EventKind.HEALED,
}  # fmt: skip
_GRAVEST = get_args(Health)
_MOST_RANKS = 1 << 20
"""What a stranger's journal may claim to have."""


@dataclass(frozen=True, kw_only=True)
class RankVerdict:
    """A rank that was found slow, or wrong."""

    step: int
    kind: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    reason: str
    sound_step: int | None
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Failing:
    """A rank on which attempts ended."""

    rank: int
    node: str
    times: int
    causes: Mapping[str, int]
    last_step: int


@dataclass(frozen=True, kw_only=True)
class ReplicaLosses:
    """A replica that was lost."""

    replica: int
    times: int
    last_step: int
    reason: str
    """Of the last time."""
    away: bool
    """It has not come back."""
    back_step: int | None
    away_s: Seconds | None
    """How long it was away, the last time."""


@dataclass(frozen=True, kw_only=True)
class NodesAndRanks:
    """What a run of several ranks, or of named nodes, has of them."""

    attempt: int
    ranks: int
    layout: str
    nodes: tuple[tuple[str, Sequence[int]], ...]
    """Names and ranks of those that train, or trained last; one node of no name has its host's."""
    spares: int
    awaited: str
    """Why nothing trains for want of nodes."""
    unwell: tuple[NodeHealth, ...]
    verdicts: tuple[RankVerdict, ...]
    """In order."""
    failing: tuple[Failing, ...]
    """Most often first."""
    replicas: tuple[ReplicaLosses, ...]
    """Of elastic runs: those that were ever lost, those that are away first."""
    compared: str
    """What ranks compared, in words."""
    unread: str
    """Why the node ledger cannot be read."""


def read_nodes(
    records: Sequence[Record], settings: Mapping[str, Any], folder: Path, now: Seconds
) -> NodesAndRanks | None:
    """What is known of the nodes and ranks of the run in `folder`; None of a run of one process."""
    events = [record for record in records if isinstance(record, Event) and record.kind in _KINDS]
    started = [e for e in events if e.kind == EventKind.ATTEMPT_STARTED]
    began = [e for e in events if e.kind == EventKind.ATTEMPT_BEGAN]
    nodes: list[tuple[str, Sequence[int]]]
    if began:
        nodes = [(node.host, own) for node, own in world_of(began[-1])]
        noted, unread = read_ledger(settings, folder)
    else:
        host = str(started[-1].data.get("host", "–")) if started else "–"
        nodes, noted, unread = [(host, range(_ranks(started, settings)))], (), ""
    ranks = sum(len(own) for _, own in nodes)
    absent = absent_of(began[-1]) if began else {}
    replicas = tuple(_replicas(events))
    if ranks < 2 and not replicas and not absent:
        return None
    return NodesAndRanks(
        attempt=max(event.attempt for event in events),
        ranks=ranks,
        layout=str(began[-1].data.get("layout", "")) if began else "",
        nodes=tuple(nodes),
        spares=sum(why == SPARE for why in absent.values()),
        awaited=_awaited(events),
        unwell=tuple(sorted(unwell(events, noted, now), key=lambda one: _GRAVEST.index(one.health)))
        if began
        else (),
        verdicts=tuple(_verdicts(events)),
        failing=tuple(_failing(events)),
        replicas=replicas,
        compared=_compared(events),
        unread=unread,
    )


def _ranks(started: Sequence[Event], settings: Mapping[str, Any]) -> int:
    told = part(started[-1].data, "hardware").get("count") if started else None
    # Of elastic runs each replica counts its own alone.
    is_elastic = part(settings, "parallel").get("elastic")
    asked = part(settings, "machine").get("processes") if is_elastic else None
    return min(max((n for n in (told, asked) if is_rank(n)), default=1), _MOST_RANKS)


def _awaited(events: Sequence[Event]) -> str:
    """Why nothing trains for want of nodes."""
    kinds = (EventKind.ATTEMPT_BEGAN, EventKind.NODE_AWAITED)
    last = [event for event in events if event.kind in kinds][-1:]
    return reason_of(last[0]) if last and last[0].kind == EventKind.NODE_AWAITED else ""


def _verdicts(events: Sequence[Event]) -> Iterator[RankVerdict]:
    for event in events:
        if event.kind == EventKind.MACHINE_VERDICT:
            data, sound = event.data, event.data.get("sound_step")
            yield RankVerdict(
                step=event.step, attempt=event.attempt, kind=str(data.get("kind", "verdict")),
                # Of ranks that differ and that nobody can tell apart all are named.
                ranks=whole(data.get("ranks")) or whole(data.get("among")),
                nodes=tuple(texts(data.get("nodes"))), reason=reason_of(event),
                sound_step=sound if isinstance(sound, int) else None,
            )  # fmt: skip


def _failing(events: Sequence[Event]) -> list[Failing]:
    """By node and rank; what no rank was blamed for is no rank's."""
    groups: dict[tuple[str, int], list[Event]] = {}
    for event in events:
        rank = event.data.get("rank")
        if event.kind == EventKind.ATTEMPT_ENDED and "cause" in event.data and is_rank(rank):
            groups.setdefault((str(event.data.get("node") or ""), rank), []).append(event)
    found = [
        Failing(
            rank=rank, node=node, times=len(own), last_step=own[-1].step,
            causes=dict(Counter(str(e.data["cause"]) for e in own).most_common()),
        )
        for (node, rank), own in groups.items()
    ]  # fmt: skip
    return sorted(found, key=lambda each: (-each.times, -each.last_step, each.rank))


def _replicas(events: Sequence[Event]) -> list[ReplicaLosses]:
    losses: dict[int, list[Event]] = {}
    back: dict[int, Event | None] = {}
    for event in events:
        number = event.data.get("rank")
        match event.kind:
            case EventKind.REPLICA_LOST if is_rank(number):
                losses.setdefault(number, []).append(event)
                back[number] = None
            case EventKind.REPLICA_BACK if number in losses:
                back[number] = event
    healed = {event.attempt for event in events if event.kind == EventKind.HEALED}
    # All start anew where no peer's state was there for the leader.
    anew = [e.attempt for e in events
            if e.kind == EventKind.ATTEMPT_STARTED and e.attempt not in healed]  # fmt: skip
    found = []
    for number, own in losses.items():
        last, again = own[-1], back[number]
        spent = again.data.get("away_s") if again is not None else None
        found.append(
            ReplicaLosses(
                replica=number, times=len(own), last_step=last.step, reason=reason_of(last),
                away=again is None and max(anew, default=0) <= last.attempt,
                back_step=again.step if again is not None else None,
                away_s=float(spent) if isinstance(spent, int | float) else None,
            )
        )  # fmt: skip
    return sorted(found, key=lambda each: (not each.away, each.replica))


def _compared(events: Sequence[Event]) -> str:
    """What ranks compared last, and whether it was alike."""
    compared = [event for event in events if event.kind == EventKind.COMPARED]
    if not compared:
        return ""
    last = compared[-1]
    alike = "alike" if last.data.get("sound") else "not alike"
    what = str(last.data.get("what", "weights"))
    times = count(len(compared), "time")
    return f"Ranks compared {what} {times}; at step {last.step:,} they were {alike}."
