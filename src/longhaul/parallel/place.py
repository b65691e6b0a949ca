"""Where a process stands among those that train together.

A process learns its place from torchrun's environment (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
`LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), whoever set it: longhaul's own supervisor,
torchrun or srun. Without it there is one process.

Enters: the environment. Leaves: a place, or None. Never knows: torch, which whoever only prepares
has no use for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from longhaul.core.errors import UsageError


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among those that train together."""

    rank: int
    size: int
    local_rank: int
    """Among the processes of its host; it computes on the device of this number."""
    local_size: int


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place that torchrun's environment names; None for one process.

    Raises:
        UsageError: the environment names half a place.
    """
    if "WORLD_SIZE" not in environment or "RANK" not in environment:
        return None
    try:
        size, rank = int(environment["WORLD_SIZE"]), int(environment["RANK"])
        local_rank = int(environment.get("LOCAL_RANK", rank))
        local_size = int(environment.get("LOCAL_WORLD_SIZE", size))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE or LOCAL_RANK is no number: {error}") from error
    if size == 1:
        return None
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise UsageError(
            f"WORLD_SIZE is {size}, but {' and '.join(missing)} is not set",
            "start the processes with torchrun, or set torchrun's environment for each of them",
        )
    if not (0 <= rank < size and 0 <= local_rank < local_size):
        raise UsageError(
            f"rank {rank} of {size}, local rank {local_rank} of {local_size}: no such place"
        )
    return Place(rank, size, local_rank, local_size)
