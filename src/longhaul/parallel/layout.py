"""How a model is dealt out, and where a process stands, by torchrun's environment; no torch."""

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from longhaul.config.train import ParallelSection
from longhaul.core.errors import RecipeError, UsageError

LAYOUT = "LONGHAUL_LAYOUT"
"""Environment variable of a worker: replicas and shards, as `3 2`, where nodes are too few."""


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
        """Position of `rank` among those that read different data; tensor ranks are neighbours."""
        return rank // self.tensor % self.data_size

    def model_place(self, rank: int) -> int:
        """Part of the model that `rank` computes; ranks of one part compute like data alike."""
        return self.stage(rank) * self.tensor + rank % self.tensor

    def stage(self, rank: int) -> int:
        """Position of `rank` in its pipeline."""
        return rank // (self.data_size * self.tensor)


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def layout_for(settings: ParallelSection, processes: int) -> Layout:
    """The layout of so many processes under `[parallel]`; RecipeError if none takes as many."""
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


KEPT_PORT = "LONGHAUL_KEPT_PORT"
"""Environment variable of rank 0: an inherited descriptor that is bound to `MASTER_PORT`."""
_FIRST_PORT, _PORTS = 16_384, 16_384
"""Below the ports that systems hand out by themselves."""
_STEP_STRIDE = 7919
"""Steps of one job, and jobs of neighbouring numbers, meet at different ports."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among those that train together."""

    rank: int
    size: int
    local_rank: int
    """Among the processes of its host; it computes on the device of this number."""
    local_size: int


def find_place(environment: Mapping[str, str]) -> Place | None:
    """The place torchrun's environment names; None for one process, UsageError for half a place."""
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


def torchrun_of_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """What torchrun would have set for a task that plain srun has started; nothing elsewhere.

    A batch script itself has `SLURM_PROCID` and `SLURM_NTASKS` too, but no step: what it starts
    without srun is one process, however many tasks the job has. `RANK` beats all of this, and a
    `MASTER_ADDR` or `MASTER_PORT` that the script has set stays. UsageError if srun's environment
    makes no sense.
    """
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if "RANK" in environment or "SLURM_PROCID" not in environment or tasks == "1":
        return {}
    try:
        node = int(environment.get("SLURM_NODEID", "0"))
        job, step = (int(environment.get(name, "0")) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        per_node = environment.get("SLURM_STEP_TASKS_PER_NODE", tasks)
        hosts = environment.get("SLURM_STEP_NODELIST") or environment["SLURM_JOB_NODELIST"]
        return {
            "RANK": environment["SLURM_PROCID"],
            "WORLD_SIZE": tasks,
            "LOCAL_RANK": environment["SLURM_LOCALID"],
            "LOCAL_WORLD_SIZE": str(_tasks_of_nodes(per_node)[node]),
            "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(hosts),
            "MASTER_PORT": environment.get("MASTER_PORT")
            or str(_FIRST_PORT + (job + _STEP_STRIDE * step) % _PORTS),
        }
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(
            f"srun's environment names {tasks} tasks, but cannot be understood: {error!r}",
            "set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each task",
        ) from error


def first_host(hosts: str) -> str:
    """The first host of a list as Slurm writes it, which has rank 0: `a[03-05,7],b2` → `a03`."""
    first = re.split(r",(?![^\[]*\])", hosts)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _tasks_of_nodes(counts: str) -> list[int]:
    """`4(x2),3` → 4, 4, 3."""
    found = []
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE {counts!r}")
        found += [int(match[1])] * int(match[2] or 1)
    return found
