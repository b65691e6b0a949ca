"""What a tier is known to hold, as it last said and as was sent there or removed since.

Enters: answers of the tier; what was sent and removed. Leaves: its checkpoints, and where in the
data they go on; threads may share it. Never knows: whether one is worth keeping.
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from longhaul.store.catalogue import Checkpoint
from longhaul.store.patience import StoreError
from longhaul.store.remote import RemoteTier

DrawOf = Callable[[RemoteTier, Checkpoint], int | None]


class Inventory:
    """The checkpoints of one tier.

    Args:
        tier: that is asked.
        draw_of: where in the data a checkpoint of the tier goes on, asked of the tier.
    """

    def __init__(self, tier: RemoteTier, draw_of: DrawOf) -> None:
        self._tier = tier
        self._draw_of = draw_of
        self._draws: dict[str, int | None] = {}
        self._there: tuple[Checkpoint, ...] | None = None
        self._lock = threading.Lock()

    @property
    def asked(self) -> bool:
        """Whether the tier has said what it holds."""
        return self._there is not None

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """What is known to be there; nothing before it was asked."""
        return self._there or ()

    @property
    def manifests(self) -> frozenset[str]:
        """Hashes of the manifests that are known to be there."""
        return frozenset(checkpoint.manifest_sha256 for checkpoint in self.checkpoints)

    @property
    def states(self) -> list[tuple[Checkpoint, int]]:
        """Checkpoints that are known to be there, and where in the data they go on."""
        draws = [(there, self._draws.get(there.manifest_sha256)) for there in self.checkpoints]
        return [(checkpoint, draw) for checkpoint, draw in draws if draw is not None]

    def learn(self) -> None:
        """Ask the tier; may take long.

        Raises:
            StoreError: it does not say.
        """
        there = tuple(self._tier.checkpoints())
        with self._lock:
            self._there = there

    def learn_draws(self) -> None:
        """Where checkpoints there go on in the data; what the store does not say is asked later."""
        with suppress(StoreError):
            for checkpoint in self.checkpoints:
                listed = len(checkpoint.path.parts) == 1  # what was just sent has its path here
                if listed and checkpoint.manifest_sha256 not in self._draws:
                    draw = self._draw_of(self._tier, checkpoint)
                    self._draws[checkpoint.manifest_sha256] = draw

    def add(self, checkpoint: Checkpoint) -> None:
        """It was sent there."""
        with self._lock:
            self._there = (*self.checkpoints, checkpoint)

    def discard(self, checkpoint: Checkpoint) -> None:
        """It was removed there."""
        with self._lock:
            self._there = tuple(item for item in self.checkpoints if item != checkpoint)
