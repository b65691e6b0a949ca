"""Which nodes of a run are not well, why, and until when: by its journal, and by the node ledger
that runs may share.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeGuard

from longhaul.core.errors import LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.core.units import Seconds, count
from longhaul.supervise.nodes.ledger import Kind, Node, NodeEvent, cordons, node_of, read
from longhaul.supervise.nodes.reputation import after_corrected_errors
from longhaul.supervise.nodes.roster import LEFT_OUT_S, PROBE_AGAIN_S, LeftOut, still_left_out
from longhaul.supervise.restart import DAY_S

_OF_HEALTH: frozenset[Kind] = frozenset({"failed", "corrected", "cordoned", "released"})
SPARE = "a spare"
"""Why a node is absent that is well."""

Health = Literal["cordoned", "absent", "left out", "refused", "suspect", "slow"]
"""The gravest first."""


@dataclass(frozen=True)
class NodeHealth:
    """One node that is not well."""

    name: str
    ranks: tuple[int, ...]
    """That it has now."""
    health: Health
    why: str
    since: Seconds | None = None
    until: str = ""
    """What ends it, or comes then."""
    until_time: Seconds | None = None
    """When it ends by itself."""


def world_of(began: Event) -> list[tuple[Node, tuple[int, ...]]]:
    """Nodes and their ranks, as an attempt began with them."""
    nodes = began.data.get("nodes")
    named = [node for node in nodes if isinstance(node, Mapping)] if isinstance(nodes, list) else []
    return [
        (node_of(str(node.get("name", "?")), texts(node.get("parts"))), whole(node.get("ranks")))
        for node in named
    ]


def absent_of(began: Event) -> dict[str, str]:
    """Name → why, of nodes that an attempt began without."""
    return {str(name): str(why) for name, why in part(began.data, "absent").items()}


def read_ledger(settings: Mapping[str, Any], folder: Path) -> tuple[tuple[NodeEvent, ...], str]:
    """What the ledger of the run in `folder` tells of health, and why it cannot be read."""
    place = Path(str(part(settings, "supervise").get("node_ledger") or folder))
    try:
        return read(place, _OF_HEALTH), ""
    except (OSError, LonghaulError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return (), f"The node ledger in {place} cannot be read: {why}."


def unwell(
    events: Sequence[Event], noted: Sequence[NodeEvent], now: Seconds
) -> Iterator[NodeHealth]:
    """Each node of the newest world, or absent from it, that is not well, by the gravest that is
    known of it.

    Args:
        events: of the run, in order; an `attempt-began` among them.
        noted: what the node ledger tells of health, in order.
        now: Unix time.
    """
    began = [event for event in events if event.kind == EventKind.ATTEMPT_BEGAN]
    newest = began[-1]
    world, absent = world_of(newest), absent_of(newest)
    ranks = {node.host: own for node, own in world}
    named = {event.host: node_of(event.host, event.parts) for event in noted}
    known = {name: named[name] for name in absent if name in named}
    known |= {node.host: node for event in began for node, _ in world_of(event)}
    cordoned = cordons(noted)
    noted_of = _by_node(known, noted)
    out = {left.node.host: left for left in still_left_out(_left_out(events), noted, now)}
    probes = {str(e.data.get("node")): e for e in events if e.kind == EventKind.NODE_PROBED}
    slow = {str(e.data.get("node")): e for e in events
            if e.kind == EventKind.NODE_SLOW and e.attempt == newest.attempt}  # fmt: skip
    for name in {**ranks, **absent}:
        node, own = known.get(name, node_of(name)), ranks.get(name, ())
        away, probe = name not in ranks, probes.get(name)
        if bad := min(node.shares(cordoned), default=""):
            word = cordoned[bad]
            why = f"{word.reason} ({bad}{f', by {word.who}' * bool(word.who)})"
            until = "until somebody releases it"
            yield NodeHealth(name, own, "cordoned", why, word.time, until)
        elif away and name in out:
            since = out[name].time
            yield NodeHealth(name, own, "left out", out[name].reason, since, "until",
                             since + LEFT_OUT_S)  # fmt: skip
        elif away and probe is not None and not probe.data.get("passed"):
            why = f"it has not passed its probe: {reason_of(probe)}"
            yield NodeHealth(name, own, "suspect", why, probe.time, "probed again after",
                             probe.time + PROBE_AGAIN_S)  # fmt: skip
        elif away and absent[name] != SPARE:
            yield NodeHealth(name, own, "absent", absent[name], newest.time)
        elif why := _suspicion(node, noted_of.get(name, ()), now):
            yield NodeHealth(name, own, "suspect", why)
        elif not away and name in slow:
            until = "until a spare takes its place"
            yield NodeHealth(name, own, "slow", reason_of(slow[name]), slow[name].time, until)
    for event in events:
        if event.kind == EventKind.NODE_REFUSED and event.time >= newest.time:
            name = str(event.data.get("node"))
            yield NodeHealth(name, (), "refused", reason_of(event), event.time)


def _by_node(known: Mapping[str, Node], noted: Sequence[NodeEvent]) -> dict[str, list[NodeEvent]]:
    """What was noted of each node, in one pass over a ledger that a thousand nodes may share."""
    owners: dict[str, list[str]] = {}
    for name, node in known.items():
        for each in node.parts:
            owners.setdefault(each, []).append(name)
    found: dict[str, list[NodeEvent]] = {}
    for event in noted:
        for name in {name for each in event.parts for name in owners.get(each, ())}:
            found.setdefault(name, []).append(event)
    return found


def _suspicion(node: Node, own: Sequence[NodeEvent], now: Seconds) -> str:
    """Why a node may be the next to leave; empty if nothing points at it."""
    if corrected := after_corrected_errors(node, own, now):
        return corrected
    released = max((e.time for e in own if e.kind == "released"), default=0.0)
    failed = [e for e in own if e.kind == "failed" and e.time > max(now - DAY_S, released)]
    causes = Counter(event.cause or "unknown" for event in failed)
    return f"{count(len(failed), 'failure')} within a day: {counted(causes)}" if failed else ""


def _left_out(events: Sequence[Event]) -> list[LeftOut]:
    return [
        LeftOut(node_of(str(name), texts(parts)), str(e.data.get("nodes_reason", "")), e.time)
        for e in events
        for name, parts in part(e.data, "evicted").items()
    ]


def counted(causes: Mapping[str, int]) -> str:
    """`hang ×2, gpu-lost`."""
    return ", ".join(f"{name} ×{n}" if n > 1 else name for name, n in causes.items())


# The run's folder may be a stranger's: what its records hold is of any type.
def part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping within another one; empty where there is none."""
    found = data.get(name)
    return found if isinstance(found, Mapping) else {}


def texts(value: Any) -> list[str]:
    """A list of texts; empty where there is none."""
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def whole(value: Any) -> tuple[int, ...]:
    """The numbers of ranks in a list; empty where there is none."""
    return tuple(filter(is_rank, value)) if isinstance(value, list | tuple) else ()


def is_rank(value: Any) -> TypeGuard[int]:
    """Whether it is the number of one."""
    return type(value) is int and value >= 0


def reason_of(event: Event) -> str:
    """Why, as the event has it."""
    return str(event.data.get("reason") or "no reason is known")
