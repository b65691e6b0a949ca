"""The world: which processes train together, and where this one stands among them.

A process learns its place from torchrun's environment (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`,
`LOCAL_WORLD_SIZE`, `MASTER_ADDR`, `MASTER_PORT`), whoever set it: longhaul's own supervisor,
torchrun or srun. Without it there is one process, and then no process group is ever made.

Enters: the environment, a layout. Leaves: process groups and a device mesh.
Never knows: recipes, models, runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from longhaul.core.errors import RecipeError, UsageError
from longhaul.core.units import Seconds
from longhaul.parallel.layout import Layout

COLLECTIVE_TIMEOUT_S: Seconds = 600.0
"""Nothing that ranks do together takes as long; who waits longer waits for a dead process."""
_PATIENCE_S: Seconds = 7 * 86_400.0
"""For the first process, which may have a large text to prepare before it comes."""
_READY = "longhaul/ready"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among those that train together."""

    rank: int
    size: int
    local_rank: int
    """Among the processes of its host; it computes on the device of this number."""
    local_size: int


@dataclass(frozen=True)
class World:
    """All processes of a run, seen from one of them. One process alone has none."""

    rank: int
    size: int
    local_rank: int
    layout: Layout
    mesh: DeviceMesh
    """Dimensions `pipeline`, `replicate`, `shard`, `tensor`, outermost first; some are 1 wide."""
    device: torch.device
    control: dist.ProcessGroup
    """gloo on the CPU, for words between step borders, whatever the device's own group is."""
    saving: dist.ProcessGroup
    """Another gloo group, for the thread that saves: collectives of two threads must never meet
    in one group."""

    @property
    def data_rank(self) -> int:
        """Position among the `data_size` ranks that read different sequences."""
        return self.layout.data_rank(self.rank)

    @property
    def data_size(self) -> int:
        """Replicate × shard: ranks of one pipeline and of one tensor group read the same."""
        return self.layout.data_size

    @property
    def is_first(self) -> bool:
        """Rank 0 judges and writes the logbook."""
        return self.rank == 0


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


def meet(place: Place, timeout_s: Seconds = COLLECTIVE_TIMEOUT_S) -> dist.ProcessGroup:
    """Wait until all processes are there; the control group.

    Call it first of all that is `torch.distributed`, once. Others wait for rank 0 for days, if
    need be, so it may come when it has something to say; after that `timeout_s` holds for
    everything that ranks do together.
    """
    patience = timedelta(seconds=_PATIENCE_S)
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=patience)))
    if place.rank == 0:
        store.set(_READY, "1")
    else:
        store.wait([_READY], patience)
    timeout = timedelta(seconds=timeout_s)
    store.set_timeout(timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return dist.new_group(backend="gloo", timeout=timeout)


def part() -> None:
    """Give the process groups back; harmless where there are none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def form_world(
    place: Place, control: dist.ProcessGroup, layout: Layout, device: torch.device
) -> World:
    """Lay the processes out; collective.

    Args:
        place: of this process.
        control: as `meet` returned it.
        layout: the same on all ranks.
        device: as `device_of` named it.

    Raises:
        RecipeError: the layout takes another number of processes.
    """
    if layout.size != place.size:
        raise RecipeError(
            f"parallel: the layout {layout} takes {layout.size} processes, and {place.size} were "
            "started",
            f"start {layout.size} processes, or change [parallel]",
        )
    mesh = init_device_mesh(
        device.type,
        (layout.pipeline, layout.replicate, layout.shard, layout.tensor),
        mesh_dim_names=("pipeline", "replicate", "shard", "tensor"),
    )
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    saving = dist.new_group(backend="gloo", timeout=timeout)
    return World(place.rank, place.size, place.local_rank, layout, mesh, device, control, saving)


def device_of(place: Place, device: torch.device) -> torch.device:
    """The device of this process, where a single process would use `device`.

    Raises:
        RecipeError: processes cannot share that kind of device, or there are too few of it.
    """
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise RecipeError(
            f"machine.device: {place.size} processes cannot train on {device.type}",
            "use --device cpu, or one process",
        )
    if place.local_rank >= torch.cuda.device_count():
        raise RecipeError(
            f"machine.device: this host has {torch.cuda.device_count()} GPUs, and "
            f"{place.local_size} processes were started on it",
            "start one process for each GPU",
        )
    own = torch.device("cuda", place.local_rank)
    torch.cuda.set_device(own)
    return own
