"""How many ways a model and its data are dealt out.

Enters: four numbers. Leaves: a layout, and where each rank stands in it. Never knows: torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """Ways of each dimension of the mesh; their product is the world's size."""

    replicate: int = 1
    shard: int = 1
    tensor: int = 1
    pipeline: int = 1

    @property
    def size(self) -> int:
        """Processes that it takes."""
        return self.replicate * self.shard * self.tensor * self.pipeline

    @property
    def data_size(self) -> int:
        """Ranks that read different data."""
        return self.replicate * self.shard

    def data_rank(self, rank: int) -> int:
        """Position of `rank` among the ranks that read different data.

        Dimensions are nested in the order pipeline, replicate, shard, tensor: ranks that differ
        in the last one are neighbours.
        """
        return rank // self.tensor % self.data_size
