"""Which machine a node is, by its hardware, and what has been seen of it over all runs."""

import json
import os
import platform
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, overload

from pydantic import StrictInt, TypeAdapter

from longhaul.core.files import naming
from longhaul.core.records import Moment
from longhaul.core.strict import lines_of, parse_json

_GPU_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-fA-F-]{36})\s*$", re.M)
_NO_SERIAL = re.compile(
    r"(|0+|1234567.*|none|n/?a|unknown|default string|not (specified|available|applicable)"
    r"|to be filled.*|system serial number|base board serial number|x+|\.+|-+)",
    re.I,
)
"""What makers leave where a serial number should be; thousands of machines share these."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine.

    A replacement that comes back under another name is often the same bad machine (incident M8), so
    a node is known by the serial numbers in it. What was decided about one of its parts holds for
    every node in which that part is found.
    """

    host: str
    """What it calls itself: for people, never compared."""
    parts: frozenset[str]
    """What it is known by: `gpu:UUID`, `board:SERIAL`, else `machine:ID`, else `host:NAME`."""

    @property
    def key(self) -> str:
        """A short name for tables: its board, else its first other part."""
        return min(self.parts, key=lambda part: (not part.startswith("board:"), part))

    def shares(self, parts: Iterable[str]) -> frozenset[str]:
        """Those of its parts that are among `parts`."""
        return self.parts & frozenset(parts)


def node_of(host: str, parts: Iterable[str] = ()) -> Node:
    """The node in which these parts are. The id of the installed system, cloned with images, counts
    only where there is no hardware, and the name only where there is nothing else.
    """
    parts = frozenset(parts)
    hardware = frozenset(part for part in parts if not part.startswith("machine:"))
    return Node(host, hardware or parts or frozenset({f"host:{host}"}))


def serial_or_none(text: str) -> str:
    """A serial number as read; empty if it is one of those that stand for none."""
    text = text.strip()
    return "" if _NO_SERIAL.fullmatch(text) else text


def read_node(root: Path = Path("/"), host: str | None = None) -> Node:
    """The machine this runs on, called `host` if given. What cannot be read is left out."""
    parts: set[str] = set()
    for about in (root / "proc/driver/nvidia/gpus").glob("*/information"):
        parts.update(f"gpu:{uuid}" for uuid in _GPU_UUID.findall(_read(about)))
    dmi = root / "sys/class/dmi/id"
    board = _serial(dmi / "board_serial") or _serial(dmi / "product_uuid")
    if board:
        parts.add(f"board:{board}")
    if machine_id := _serial(root / "etc/machine-id"):
        parts.add(f"machine:{machine_id}")
    return node_of(platform.node() if host is None else host, parts)


def _serial(path: Path) -> str:
    return serial_or_none(_read(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


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
    time: Moment
    run: str = ""
    passed: bool = True
    """Of a probe."""
    cause: str = ""
    count: StrictInt = 0
    reason: str = ""
    who: str = ""
    """The person who decided it; empty: a supervisor."""
    data: dict[str, Any] = field(default_factory=dict)


_EVENT = TypeAdapter(NodeEvent)


def append(folder: Path, event: NodeEvent) -> None:
    """Write an event down, on the medium when this returns; OSError if that refused. A line is one
    write of less than a page into a file that runs share: it is whole, or not there. It concerns
    every node that has one of its parts.
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


KINDS: frozenset[Kind] = frozenset(get_args(Kind))


def read(folder: Path, kinds: Collection[Kind] = KINDS) -> tuple[NodeEvent, ...]:
    """The events of these kinds, in the order written; none if there is no ledger, OSError if it
    cannot be read. Lines that are torn, or of kinds that a newer longhaul knows, are left out.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return ()
    # Of a long ledger only the lines are parsed that may be meant.
    words = [f'"{kind}"'.encode() for kind in kinds]
    events = (_event(line) for line in lines_of(path) if any(word in line for word in words))
    return tuple(event for event in events if event is not None and event.kind in kinds)


class EventIndex(Sequence[NodeEvent]):
    """Events in order, found by part: to judge a thousand nodes, none is read a thousand times."""

    def __init__(self, events: Iterable[NodeEvent] = ()) -> None:
        self._events: list[NodeEvent] = []
        self._by_part: dict[str, tuple[NodeEvent, ...]] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        self.cordoned: dict[str, NodeEvent] = {}
        """Part → the event that cordoned it, of all parts that are cordoned now."""
        for event in events:
            self.add(event)

    def add(self, event: NodeEvent) -> None:
        """One more event, after all others."""
        for part in event.parts:
            self._by_part[part] = (*self._by_part.get(part, ()), event)
            self._numbers[part] = (*self._numbers.get(part, ()), len(self._events))
        self._events.append(event)
        _cordon(self.cordoned, event)

    def of(self, node: Node) -> tuple[NodeEvent, ...]:
        """The events of any part of a node, in order."""
        known = [part for part in node.parts if part in self._by_part]
        if len(known) == 1:
            return self._by_part[known[0]]
        numbers = sorted({number for part in known for number in self._numbers[part]})
        return tuple(self._events[number] for number in numbers)

    def __len__(self) -> int:
        return len(self._events)

    @overload
    def __getitem__(self, index: int) -> NodeEvent: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NodeEvent]: ...
    def __getitem__(self, index: int | slice) -> NodeEvent | Sequence[NodeEvent]:
        return self._events[index]


def concerning(node: Node, events: Iterable[NodeEvent]) -> tuple[NodeEvent, ...]:
    """The events of a node: those of any part that it has."""
    if isinstance(events, EventIndex):
        return events.of(node)
    return tuple(event for event in events if node.shares(event.parts))


def cordons(events: Sequence[NodeEvent]) -> dict[str, NodeEvent]:
    """Part → the event that cordoned it, of all parts that are cordoned now."""
    if isinstance(events, EventIndex):
        return events.cordoned
    active: dict[str, NodeEvent] = {}
    for event in events:
        _cordon(active, event)
    return active


def _cordon(active: dict[str, NodeEvent], event: NodeEvent) -> None:
    for part in event.parts:
        if event.kind == "cordoned":
            active.setdefault(part, event)
        elif event.kind == "released":
            active.pop(part, None)


def _event(line: bytes) -> NodeEvent | None:
    try:
        body = parse_json(line, FILE_NAME)
        return _EVENT.validate_python(body) if body["format"] == FORMAT else None
    except (ValueError, KeyError, TypeError):
        return None
