"""What a drill keeps in a run's folder: the faults laid into it, those that were injected, and what
they do around its ranks. No torch here.

Only a process of a drill reads them (`cli/disturbed.py`). What was injected is remembered on the
medium before it is, so that a restart does not meet the same fault again. The nodes of a drill are
imitated and share one kernel, whose log is a file.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from longhaul.core.files import write_json
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.fault import Fault, parse_fault
from longhaul.supervise.nodes.placement import NODE
from longhaul.supervise.nodes.qualify import Answer

NO_ROUTE = 255
"""Exit code of ssh where a host cannot be reached."""
_DONE, _KERNEL_LOG = "drill-done.jsonl", "drill-kernel.jsonl"
"""A line for each `Done`; and for each message, with `monotonic`, `node` and `line`."""
_FAULTS = TypeAdapter(tuple[Fault, ...])


def lay(folder: RunFolder, faults: Sequence[Fault] = ()) -> None:
    """Leave faults for the run's next worker, and for those that look now."""
    write_json(laid_path(folder), [asdict(fault) for fault in faults])


def laid_path(folder: RunFolder) -> Path:
    """Where faults are left."""
    return folder.path / "drill.json"


def read_laid(folder: RunFolder) -> tuple[Fault, ...]:
    """What was left."""
    return _FAULTS.validate_json(laid_path(folder).read_bytes())


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was injected."""

    number: int
    """Its place among the faults that were laid, from 0."""
    fault: str
    rank: int
    node: str
    attempt: int
    step: int
    """The step that the rank was about to make."""
    time: Seconds
    """Unix time right before it was done."""


def note_done(folder: RunFolder, done: Done) -> None:
    """Remember a fault, on the medium, before it is done."""
    _add_line(folder.path / _DONE, asdict(done))


def read_done(folder: RunFolder) -> list[Done]:
    """Every fault that was injected into a run, in order."""
    names = {field.name for field in fields(Done)}
    return [Done(**line) for line in _lines(folder.path / _DONE, names)]


def kernel_messages(folder: RunFolder, lines: list[str], since: Seconds, node: str) -> list[str]:
    """A kernel's messages since a monotonic time, with those that a drill injected."""
    own = _lines(folder.path / _KERNEL_LOG, {"monotonic", "node", "line"})
    added = [line for line in own if line["monotonic"] >= since and line["node"] == node]
    return [*lines, *(str(line["line"]) for line in added)]


def write_kernel_log(folder: RunFolder, node: str, line: str) -> None:
    """Add a message to the kernel's of a node; empty: of this machine."""
    body = {"monotonic": time.monotonic(), "node": node, "line": line}
    _add_line(folder.path / _KERNEL_LOG, body)


def _add_line(path: Path, body: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        # On a line of its own, even if a machine went in the middle of the one before.
        file.write(f"\n{json.dumps(body)}\n")
        file.flush()
        os.fsync(file.fileno())


def _lines(path: Path, names: set[str]) -> list[dict[str, Any]]:
    found = []
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # empty, or torn
                found.append(json.loads(line))
    return [line for line in found if isinstance(line, dict) and line.keys() == names]


def is_gone(folder: RunFolder, node: str) -> bool:
    """A node cannot be reached for now."""
    return any(
        done.fault.startswith("node-gone")
        and done.node == node
        and time.time() < done.time + parse_fault(done.fault).value
        for done in read_done(folder)
    )


def refuse_if_gone(folder: RunFolder) -> None:
    """End this process with 255 if its node has gone, as if nobody had reached the node."""
    node = os.environ.get(NODE, "")
    if is_gone(folder, node):
        name = node or "this-machine"
        print(f"ssh: connect to host {name} port 22: No route to host", file=sys.stderr)
        sys.exit(NO_ROUTE)


def no_answer(folder: RunFolder, answer: Answer | None, node: str) -> Answer | None:
    """What a node answers; a drill may have taken it away."""
    return Answer(came=False, reason="drill") if is_gone(folder, node) else answer
