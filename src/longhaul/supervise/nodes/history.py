"""What a run's journal tells of its nodes, and what rank 0 says of machines, as it comes."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from longhaul.config.recover import NodeSection
from longhaul.core.events import NODE_EVENTS, EventKind
from longhaul.core.records import Event, RecordError, from_line
from longhaul.core.strict import lines_of
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import journal_files
from longhaul.supervise.history import WHO
from longhaul.supervise.nodes.answer import MachineVerdict
from longhaul.supervise.nodes.ledger import Node, node_of
from longhaul.supervise.nodes.placement import World
from longhaul.supervise.nodes.reputation import WorldSpan
from longhaul.supervise.nodes.roster import LeftOut


def node_events(folder: RunFolder) -> list[Event]:
    """What supervisors have written of nodes and of failures, in order, in their own files."""
    kinds, found = {*NODE_EVENTS, EventKind.ATTEMPT_ENDED}, []
    for file in journal_files(folder.journal):
        if file.author != WHO or not file.events:
            continue
        for line in lines_of(folder.journal / file.name):
            with suppress(RecordError):
                record = from_line(line)
                if isinstance(record, Event) and record.kind in kinds:
                    found.append(record)
    return found


def as_data(world: World) -> list[dict[str, Any]]:
    """The nodes of a world as `attempt-began` keeps them."""
    return [
        {"name": m.name, "parts": sorted(m.node.parts), "ranks": list(world.ranks(m))}
        for m in world.machines
    ]


def spans(events: Sequence[Event]) -> tuple[WorldSpan, ...]:
    """The worlds of all attempts; one that was killed came as far as the next one began."""
    begun = [event for event in events if event.kind == EventKind.ATTEMPT_BEGAN]
    ends = {e.attempt: e for e in events if e.kind == EventKind.ATTEMPT_ENDED and "cause" in e.data}
    found = []
    for number, event in enumerate(begun):
        end, first = ends.get(event.attempt), int(event.data["from_step"])
        reached = [first, *(int(later.data["from_step"]) for later in begun[number + 1 :][:1])]
        if end is not None and end.data["reached"] is not None:
            reached.append(int(end.data["reached"]))
        hung = end is not None and end.data["cause"] == "hang"
        nodes = tuple(node_of(body["name"], body["parts"]) for body in event.data["nodes"])
        found.append(WorldSpan(nodes, max(reached) - first, hung))
    return tuple(found)


def node_failures(events: Iterable[Event]) -> list[tuple[Node, Seconds]]:
    """The nodes on which failures began, and when."""
    return [
        (node_of(event.data["node"], event.data["node_parts"]), event.time)
        for event in events
        if event.kind == EventKind.ATTEMPT_ENDED and event.data.get("node")
    ]


def left_out(events: Iterable[Event]) -> tuple[LeftOut, ...]:
    """The nodes that the run has gone on without, on suspicion."""
    return tuple(
        LeftOut(node_of(name, parts), str(event.data["nodes_reason"]), event.time)
        for event in events
        for name, parts in event.data.get("evicted", {}).items()
    )


def ordered(events: Iterable[Event]) -> list[NodeSection]:
    """Entries of the nodes that came in place of others."""
    entries = [
        e.data["entry"] for e in events if e.kind == EventKind.NODE_ORDERED and e.data.get("entry")
    ]
    return [NodeSection.model_validate_json(json.dumps(entry)) for entry in entries]


_KIND = EventKind.MACHINE_VERDICT


class Verdicts:
    """The verdicts of one attempt."""

    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self._folder = folder
        self._attempt = attempt
        self._read: dict[str, Bytes] = {}

    def new(self) -> list[MachineVerdict]:
        """Those that came since the last call, in order."""
        found = []
        for file in journal_files(self._folder.journal):
            if file.attempt != self._attempt or not file.events or file.author != "pilot":
                continue
            begin = self._read.get(file.name, 0)
            with (self._folder.journal / file.name).open("rb") as lines:
                lines.seek(begin)
                added = lines.read()
            whole = added[: added.rfind(b"\n") + 1]
            self._read[file.name] = begin + len(whole)
            found += [v for line in whole.splitlines() if (v := _verdict(line)) is not None]
        return found


def newest_corrupt(folder: RunFolder, attempt: int) -> MachineVerdict | None:
    """The last verdict of an attempt about wrong numbers."""
    corrupt = [v for v in Verdicts(folder, attempt).new() if v.kind == "corrupt"]
    return corrupt[-1] if corrupt else None


def _verdict(line: bytes) -> MachineVerdict | None:
    record = None
    if _KIND.encode() in line:
        with suppress(RecordError):
            record = from_line(line)
    if not isinstance(record, Event) or record.kind != _KIND:
        return None
    data = record.data
    return MachineVerdict(
        str(data["kind"]), tuple(data["ranks"]), str(data["reason"]), data.get("sound_step")
    )
