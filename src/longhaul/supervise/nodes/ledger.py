"""What has been seen of nodes, over all runs: probes, failures, cordons.

One file of JSON lines in a folder that runs share, only ever appended to; each line is whole or
not there, because a line is one write of less than a page. A node is a set of parts
(`identity.py`), and a line concerns every node that has one of them.

Enters: events. Leaves: the same in the order written, torn lines left out; what of them
concerns a node. Never knows: what follows from them (`reputation.py`).
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from longhaul.core.files import naming
from longhaul.core.units import Seconds
from longhaul.supervise.nodes.identity import Node

Kind = Literal["probed", "joined", "left", "failed", "corrected", "cordoned", "released"]
FILE_NAME = "nodes.jsonl"
FORMAT = 1
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    """Something that was seen of a node, or decided about it."""

    kind: Kind
    """`joined`, `left`: a world; the time between is what failures are counted against.
    `corrected`: errors that its memory corrected, `count` of them since the event before.
    `cordoned`: nothing runs on its `parts` until they are `released`."""
    parts: tuple[str, ...]
    host: str
    """What it called itself then."""
    time: Seconds
    run: str = ""
    passed: bool = True
    """Of a probe."""
    cause: str = ""
    """Of a failure."""
    count: int = 0
    reason: str = ""
    """In words."""
    who: str = ""
    """The person who decided it; empty: a supervisor."""
    data: dict[str, Any] = field(default_factory=dict)
    """Figures of a probe."""


def append(folder: Path, event: NodeEvent) -> None:
    """Write an event down, on the medium when this returns.

    Raises:
        OSError: the medium refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    body = {"format": FORMAT} | asdict(event) | {"reason": event.reason[:_LONGEST_REASON]}
    line = json.dumps(body, ensure_ascii=False, separators=(",", ":")) + "\n"
    descriptor = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        # A writer that died in the middle of a line must not spoil the next one.
        size = os.fstat(descriptor).st_size
        torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        with naming(folder / FILE_NAME):
            unwritten = (b"\n" if torn else b"") + line.encode()
            while unwritten:  # a full disk takes a part first and refuses the rest
                unwritten = unwritten[os.write(descriptor, unwritten) :]
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(folder: Path) -> tuple[NodeEvent, ...]:
    """All events, in the order written; none if there is no ledger.

    Lines that are torn, or of kinds that a newer longhaul knows, are left out.

    Raises:
        OSError: it is there and cannot be read.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return ()
    events = (_event(line) for line in path.read_bytes().splitlines())
    return tuple(event for event in events if event is not None)


def concerning(node: Node, events: Iterable[NodeEvent]) -> tuple[NodeEvent, ...]:
    """The events of a node: those of any part that it has."""
    return tuple(event for event in events if node.shares(event.parts))


def cordons(events: Sequence[NodeEvent]) -> dict[str, NodeEvent]:
    """Part → the event that cordoned it, of all parts that are cordoned now."""
    active: dict[str, NodeEvent] = {}
    for event in events:
        for part in event.parts:
            if event.kind == "cordoned":
                active.setdefault(part, event)
            elif event.kind == "released":
                active.pop(part, None)
    return active


def _event(line: bytes) -> NodeEvent | None:
    try:
        body = json.loads(line)
        if body.pop("format") != FORMAT or body["kind"] not in get_args(Kind):
            return None
        known = NodeEvent.__dataclass_fields__.keys()
        values = {key: value for key, value in body.items() if key in known}
        return NodeEvent(**values | {"parts": tuple(values["parts"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
