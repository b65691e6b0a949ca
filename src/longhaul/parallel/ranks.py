"""The ranks of a run as those see them who must do the same thing at the same time.

Enters: a world and its control group. Leaves: one value that is handed to whoever needs both.
Never knows: what is done together.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn import functional

from longhaul.parallel.control import Control
from longhaul.parallel.world import World


@dataclass(frozen=True)
class Ranks:
    """Many processes; one alone has none of this."""

    world: World
    control: Control
    """Of the main thread."""
    saving: Control
    """Of the thread that saves."""

    @classmethod
    def of(cls, world: World) -> "Ranks":
        """The channels of a world."""
        return cls(world, Control(world.control), Control(world.saving, "saving"))

    def whole_logits(self, logits_V: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """The logits of all tokens, where the ranks of a layer have some columns each.

        Args:
            logits_V: this rank's columns, on its device.
            vocabulary: tokens there are.
        """
        ways = self.world.layout.tensor
        if ways == 1:
            return logits_V
        missing = -(-vocabulary // ways) - len(logits_V)  # the last rank may have fewer
        own_V = functional.pad(logits_V, (0, max(0, missing)), value=float("-inf"))
        all_WV = [torch.empty_like(own_V) for _ in range(ways)]
        dist.all_gather(all_WV, own_V.contiguous(), group=self.world.mesh.get_group("tensor"))
        return torch.cat(all_WV)[:vocabulary]

    @property
    def share_passes(self) -> bool:
        """Whether other ranks wait in the middle of a forward pass for what this one computes:
        for its share of a layer, or its stage's activations. Replicas do not.
        """
        layout = self.world.layout
        return layout.shard * layout.tensor * layout.pipeline > 1

    @property
    def counts(self) -> bool:
        """Whether this rank's figures are to be added up: of those that read the same sequences
        one alone speaks.
        """
        return self.world.rank % self.world.layout.tensor == 0
