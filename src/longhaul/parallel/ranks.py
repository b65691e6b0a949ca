"""The ranks of a run as those see them who must do the same thing at the same time.

Enters: a world and its control group. Leaves: one value that is handed to whoever needs both.
Never knows: what is done together.
"""

from dataclasses import dataclass

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

    @property
    def counts(self) -> bool:
        """Whether this rank's figures are to be added up: of those that read the same sequences
        one alone speaks.
        """
        return self.world.rank % self.world.layout.tensor == 0
