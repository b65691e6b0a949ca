"""What happens between a run and its tiers, kept until somebody asks.

Enters: changes, from the thread that sends. Leaves: the same, in order, on the training thread.
Never knows: what is done with them.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from longhaul.core.units import Bytes, Seconds
from longhaul.store.catalogue import Checkpoint

Kind = Literal[
    "uploaded", "store-away", "store-back", "store-taken", "upload-dropped", "remote-removed"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierChange:
    """Something that happened between this run and a tier since the last poll."""

    kind: Kind
    """`store-away`: told once, when the first attempt fails; it is tried again and again.
    `store-taken`: the place is another run's, or a later attempt's; nothing more is sent there.
    `upload-dropped`: a checkpoint that will not be sent, and why."""
    tier: str
    step: int
    manifest_sha256: str = ""
    size_bytes: Bytes = 0
    """Sent now; files that were there already are not counted."""
    seconds: Seconds = 0.0
    message: str = ""


class TierChanges:
    """The changes of one tier.

    Args:
        tier: its name.
    """

    def __init__(self, tier: str) -> None:
        self._tier = tier
        self._changes: deque[TierChange] = deque()

    def poll(self) -> Iterator[TierChange]:
        """What happened since the last call, in order; never waits."""
        with suppress(IndexError):
            while True:
                yield self._changes.popleft()

    def tell(
        self,
        kind: Kind,
        checkpoint: Checkpoint | None,
        message: str = "",
        *,
        size_bytes: Bytes = 0,
        seconds: Seconds = 0.0,
    ) -> None:
        """Keep one more; `TierChange` says what its parts are."""
        self._changes.append(
            TierChange(
                kind=kind,
                tier=self._tier,
                step=0 if checkpoint is None else checkpoint.step,
                manifest_sha256="" if checkpoint is None else checkpoint.manifest_sha256,
                size_bytes=size_bytes,
                seconds=seconds,
                message=message,
            )
        )
