"""The nodes that a ledger knows, and a person's word on one of them: a cordon, or its end."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from longhaul.config.recover import NodeSection
from longhaul.core.errors import UsageError
from longhaul.core.units import Seconds
from longhaul.supervise.nodes.ledger import Node, NodeEvent, concerning, cordons, node_of
from longhaul.supervise.nodes.roster import LeftOut, still_left_out

Word = Literal["cordoned", "released"]
"""What a person may say of a node."""
_IN_USE = ("joined", "left", "failed")
_OF_PARTS = ("cordoned", "released")
"""Events that may concern some of a node's parts alone."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one node."""

    node: Node
    """With the name and the parts that it had last."""
    probes: int = 0
    last_probe: NodeEvent | None = None
    causes: Mapping[str, int] = field(default_factory=dict)
    """Cause → failures of that cause, most often first."""
    corrected: int = 0
    cordoned: Mapping[str, NodeEvent] = field(default_factory=dict)
    """Part → the event since which nothing runs on it."""
    released: int = 0
    left_out: str = ""
    """Why the run that was asked goes on without it for now, on suspicion."""
    used: Seconds | None = None
    """When it was last seen in a world; None: never."""
    in_use: bool = False
    """It has joined a world and not left it, as far as anybody has written down."""


def known_nodes(
    events: Sequence[NodeEvent],
    now: Seconds,
    entries: Iterable[NodeSection] = (),
    left_out: Sequence[LeftOut] = (),
) -> tuple[Known, ...]:
    """Every node that the ledger or a recipe names, by name.

    A node is what it was last seen as: a board whose GPUs were exchanged is one node, and a board
    that has another node's old GPU is another one. `entries` without an identity are left out.
    """
    whole = [node_of(e.host, e.parts) for e in reversed(events) if e.kind not in _OF_PARTS]
    named = [node_of(entry.name, entry.identity) for entry in entries if entry.identity]
    of_parts = [node_of(e.host, e.parts) for e in reversed(events) if e.kind in _OF_PARTS]
    nodes: list[Node] = []
    for node in (*whole, *named, *of_parts):
        if not any(node.key in other.parts for other in nodes):
            nodes.append(node)
    suspected = still_left_out(left_out, events, now)
    found = (_known(node, events, suspected) for node in nodes)
    return tuple(sorted(found, key=lambda one: (one.node.host, one.node.key)))


def find_node(known: Sequence[Known], name: str) -> Known:
    """The node of that name or with that part; UsageError if there are several, or none."""
    found = [one for one in known if name == one.node.host or name in one.node.parts]
    if len(found) == 1:
        return found[0]
    if found:
        parts = "name a part of it: " + ", ".join(one.node.key for one in found)
        raise UsageError(f"node {name}: {len(found)} nodes have had that name", parts)
    names = [one.node.host for one in known]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    there = f"did you mean {near[0]}? " if near else ""
    listed = f"there are: {', '.join(names)}" if names else "no node has been seen yet"
    raise UsageError(f"node {name}: nothing is known of it", there + listed)


def word_on(one: Known, name: str, kind: Word, reason: str, who: str, now: Seconds) -> NodeEvent:
    """What a person's word on a node adds to the ledger; only the part is meant if `name` is one.
    UsageError if no reason is given, or the word would change nothing.
    """
    host = one.node.host
    if not reason.strip():
        raise UsageError(f"node {host}: no reason is given", 'say why, as --reason "new memory"')
    parts = {name} if name in one.node.parts else set(one.node.parts)
    if kind == "released":
        parts = parts if one.left_out else parts & one.cordoned.keys()
        if not parts:
            lists = "`longhaul nodes` lists those that are"
            raise UsageError(f"node {host}: is not cordoned", lists)
    elif parts <= one.cordoned.keys():
        since = one.cordoned[min(parts)]
        raise UsageError(f"node {host}: is cordoned already: {since.reason}")
    return NodeEvent(kind=kind, parts=tuple(sorted(parts)), host=host, time=now,
                     reason=reason.strip(), who=who)  # fmt: skip


def _known(node: Node, events: Sequence[NodeEvent], suspected: Iterable[LeftOut]) -> Known:
    own = concerning(node, events)
    probes = [event for event in own if event.kind == "probed"]
    worlds = [event for event in own if event.kind in _IN_USE]
    moves = [event for event in worlds if event.kind != "failed"]
    causes = Counter(event.cause or "unknown" for event in own if event.kind == "failed")
    active = cordons(events)
    return Known(
        node=node,
        probes=len(probes),
        last_probe=probes[-1] if probes else None,
        causes=dict(causes.most_common()),
        corrected=sum(event.count for event in own if event.kind == "corrected"),
        cordoned={part: active[part] for part in sorted(node.shares(active))},
        released=sum(event.kind == "released" for event in own),
        left_out=next((one.reason for one in suspected if node.shares(one.node.parts)), ""),
        used=worlds[-1].time if worlds else None,
        in_use=bool(moves) and moves[-1].kind == "joined",
    )
