"""The world: which processes train together, and where this one stands among them.

Where there is one process, no process group is ever made.

Enters: a place, a layout. Leaves: process groups and a device mesh.
Never knows: recipes, models, runs.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import rendezvous  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout as set_timeout

from longhaul.core.errors import RecipeError
from longhaul.core.units import Seconds
from longhaul.parallel.layout import Layout
from longhaul.parallel.place import Place

COLLECTIVE_TIMEOUT_S: Seconds = 1200.0
"""Nothing that ranks do together takes as long; who waits longer waits for a dead process."""
_LOOK_EVERY_S: Seconds = 0.1
_CONNECT_S: Seconds = 5.0
_READY = "longhaul/ready"


@dataclass(frozen=True)
class World:
    """All processes of a run, seen from one of them. One process alone has none."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    """Processes of this host."""
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


def meet(place: Place, timeout_s: Seconds = COLLECTIVE_TIMEOUT_S) -> dist.ProcessGroup:
    """Wait until all processes are there; the control group.

    Call it first of all that is `torch.distributed`, once. Others wait for rank 0 for days, if
    need be, so it may come when it has something to say; after that `timeout_s` holds for
    everything that ranks do together.
    """
    if place.rank != 0:
        # Not within torch, where a process is deaf to signals.
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        _wait_for(lambda: _answers(address))
    store, rank, size = next(iter(rendezvous("env://")))
    if place.rank == 0:
        store.set(_READY, "1")
    else:
        _wait_for(lambda: store.check([_READY]))
    timeout = timedelta(seconds=timeout_s)
    store.set_timeout(timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    control: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout)
    return control


def _wait_for(there: Callable[[], bool]) -> None:
    while not there():
        time.sleep(_LOOK_EVERY_S)


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except OSError:
        return False
    return True


def part() -> None:
    """Give the process groups back; harmless where there are none."""
    if dist.is_initialized():
        dist.destroy_process_group()


def form_world(
    place: Place,
    control: dist.ProcessGroup,
    layout: Layout,
    device: torch.device,
    timeout_s: Seconds = COLLECTIVE_TIMEOUT_S,
) -> World:
    """Lay the processes out; collective.

    Args:
        place: of this process.
        control: as `meet` returned it.
        layout: the same on all ranks.
        device: as `device_of` named it.
        timeout_s: of everything that ranks do together from now on.

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
    timeout = timedelta(seconds=timeout_s)
    saving = dist.new_group(backend="gloo", timeout=timeout)
    # A mesh makes its groups with the backend's own default, 10 minutes for NCCL: they would fail
    # before the watchdog could say who did not arrive.
    for group in (None, control, *mesh.get_all_groups()):
        set_timeout(timeout, group)
    return World(
        place.rank,
        place.size,
        place.local_rank,
        place.local_size,
        layout,
        mesh,
        device,
        control,
        saving,
    )


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
