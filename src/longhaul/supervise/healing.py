"""What a replica that was healed leaves for its supervisor, which keeps the book of its deaths.

Enters: whose state a replica was given, at which step. Leaves: `workers/NUMBER.healed`, and it read
back. Never knows: how states are given.
"""

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from longhaul.core.files import write_json
from longhaul.core.strict import read_object
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Healing:
    """A replica has been given a peer's state."""

    peer: int
    step: int
    """Updates that the peer had made."""
    monotonic: Seconds
    """When."""
    wall: Seconds
    """The same in Unix time."""


def tell_healing(folder: RunFolder, number: int, peer: int, step: int) -> None:
    """Keep it; a full disk must not end a replica."""
    healing = Healing(peer, step, time.monotonic(), time.time())
    with suppress(OSError):
        write_json(_path(folder, number), asdict(healing))


def forget_healing(folder: RunFolder, number: int) -> None:
    """Whatever was told is of an earlier life."""
    with suppress(OSError):
        _path(folder, number).unlink(missing_ok=True)


def read_healing(folder: RunFolder, number: int) -> Healing | None:
    """How a replica was healed in its present life; None if it was not."""
    try:
        return Healing(**read_object(_path(folder, number)))
    except (OSError, ValueError, TypeError):
        return None


def _path(folder: RunFolder, number: int) -> Path:
    return folder.workers / f"{number}.healed"
