"""How many ways a model and its data are dealt out.

Enters: `[parallel]` and a number of processes. Leaves: a layout, and where each rank stands in it.
Never knows: torch.
"""

import math
from dataclasses import dataclass

from longhaul.config.train import ParallelSection
from longhaul.core.errors import RecipeError

LAYOUT = "LONGHAUL_LAYOUT"
"""Environment variable of a worker: replicas and shards, as `3 2`, where there are too few nodes
for the recipe's own."""


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

    def __str__(self) -> str:
        """As people write it: `shard 2 × tensor 2`."""
        ways = {"pipeline": self.pipeline, "replicate": self.replicate,
                "shard": self.shard, "tensor": self.tensor}  # fmt: skip
        return " × ".join(f"{name} {count}" for name, count in ways.items() if count > 1) or "1"

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

    def model_place(self, rank: int) -> int:
        """Which part of the model `rank` computes, by stage of the pipeline and tensor rank.

        Ranks of one place compute the same where they are given the same data.
        """
        return self.stage(rank) * self.tensor + rank % self.tensor

    def stage(self, rank: int) -> int:
        """Position of `rank` in its pipeline."""
        return rank // (self.data_size * self.tensor)


def layout_for(settings: ParallelSection, processes: int) -> Layout:
    """The layout of so many processes under `[parallel]`.

    Raises:
        RecipeError: no layout takes exactly as many.
    """
    inner = settings.tensor * settings.pipeline
    data, rest = divmod(processes, inner)
    if rest or not data:
        raise RecipeError(
            f"parallel.tensor × parallel.pipeline: {settings.tensor} × {settings.pipeline} do not "
            f"divide {processes} processes",
            f"start a multiple of {inner} processes, or change the two settings",
        )
    shard, replicate = settings.shard, settings.replicate
    if shard is None:
        shard = data // (replicate or 1)
    if replicate is None:
        replicate = data // shard
    if replicate * shard != data:
        asked = {"replicate": settings.replicate, "shard": settings.shard}
        given = {f"parallel.{name}": ways for name, ways in asked.items() if ways is not None}
        wanted = math.prod(given.values())
        raise RecipeError(
            f"{' × '.join(given)}: {' × '.join(map(str, given.values()))} "
            f"{'do' if len(given) > 1 else 'does'} not fit the {data} data ranks that {processes} "
            "processes leave",
            f"start {wanted * inner} processes, or change or leave out {' or '.join(given)}",
        )
    return Layout(replicate, shard, settings.tensor, settings.pipeline)
