"""Faults laid into a run's folder, and those that were done to it.

`drill.json` holds what is laid; only a drill's process reads it (`cli/disturbed.py`). What was done
is remembered on the medium before it is done, so that a restart does not meet the same fault again.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longhaul.core.files import write_json
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.fault import Fault


def lay(folder: RunFolder, faults: Sequence[Fault] = ()) -> None:
    """Leave faults for the run's next worker, and for those that look now."""
    write_json(laid_path(folder), [asdict(fault) for fault in faults])


def laid_path(folder: RunFolder) -> Path:
    """Where faults are left."""
    return folder.path / "drill.json"


def read_laid(folder: RunFolder) -> tuple[Fault, ...]:
    """What was left."""
    return tuple(_fault(body) for body in json.loads(laid_path(folder).read_bytes()))


def _fault(body: dict[str, Any]) -> Fault:
    pairs = {key: tuple(body[key]) for key in ("draws", "made") if body[key] is not None}
    return Fault(**{**body, **pairs})


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done."""

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
    # On a line of its own, even if a machine went in the middle of the one before.
    line = f"\n{json.dumps(asdict(done))}\n"
    descriptor = os.open(_memory(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_done(folder: RunFolder) -> list[Done]:
    """Every fault that was done to a run, in the order in which it was."""
    found = []
    with suppress(FileNotFoundError):
        for line in _memory(folder).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):  # empty, or torn
                found.append(Done(**json.loads(line)))
    return found


def _memory(folder: RunFolder) -> Path:
    return folder.path / "drill-done.jsonl"
