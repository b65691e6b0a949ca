"""Which processes train together, and where this one stands; one alone has no process group."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store, TCPStore, rendezvous  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout as set_timeout
from torch.nn import functional

from longhaul.core.errors import ExitCode, LonghaulError, RecipeError
from longhaul.core.units import Seconds
from longhaul.model.device import claim
from longhaul.parallel.control import Control
from longhaul.parallel.layout import KEPT_PORT, Layout, Place

COLLECTIVE_TIMEOUT_S: Seconds = 1200.0
"""Nothing that ranks do together takes as long; who waits longer waits for a dead process."""
_LOOK_EVERY_S: Seconds = 0.1
_CONNECT_S: Seconds = 5.0
_READY, _ABSENT, _HEARD = "longhaul/ready", "longhaul/absent", "longhaul/heard"
_CLAIMED = "longhaul/claimed"
_HEARD_WITHIN_S: Seconds = 30.0
"""Tasks of one step of srun begin within seconds of each other."""
_has_met = False


class FirstAbsent(LonghaulError):
    """Rank 0 has ended before it met the others; its own words say why."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(f"rank 0 has ended with exit code {int(code)} before training began")
        self.exit_code = code


@dataclass(frozen=True)
class World(Place):
    """All processes of a run, seen from one of them. One process alone has none."""

    layout: Layout
    mesh: DeviceMesh
    """Dimensions `pipeline`, `replicate`, `shard`, `tensor`, outermost first; some are 1 wide."""
    device: torch.device
    control: Control
    """gloo on the CPU, for words between step boundaries, whatever the device's own group is."""
    saving: Control
    """Another gloo group, for the thread that saves: two threads' collectives must never meet."""

    @property
    def data_rank(self) -> int:
        """Position among the `data_size` ranks that read different sequences."""
        return self.layout.data_rank(self.rank)

    @property
    def data_size(self) -> int:
        """Replicate × shard: ranks of one pipeline and of one tensor group read the same."""
        return self.layout.data_size

    def whole_logits(self, logits_V: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """The logits of all tokens, where the ranks of a layer have some columns each."""
        ways = self.layout.tensor
        if ways == 1:
            return logits_V
        missing = -(-vocabulary // ways) - len(logits_V)  # the last rank may have fewer
        own_V = functional.pad(logits_V, (0, max(0, missing)), value=float("-inf"))
        all_WV = [torch.empty_like(own_V) for _ in range(ways)]
        dist.all_gather(all_WV, own_V.contiguous(), group=self.mesh.get_group("tensor"))
        return torch.cat(all_WV)[:vocabulary]

    @property
    def share_passes(self) -> bool:
        """Whether others wait within a forward pass for this rank's part of the model."""
        return self.layout.shard * self.layout.tensor * self.layout.pipeline > 1

    @property
    def counts(self) -> bool:
        """Whether this rank's figures are added up: one of those that read the same speaks."""
        return self.rank % self.layout.tensor == 0


def meet(
    place: Place,
    timeout_s: Seconds = COLLECTIVE_TIMEOUT_S,
    wanted: str = "cpu",
    own: Callable[[str], torch.device] = torch.device,
) -> Control:
    """Wait until all processes are there; the control channel.

    Call it first of all that is `torch.distributed`, once. Others wait for rank 0 for days, if
    need be; after that `timeout_s` holds for everything that ranks do together. `wanted`: the
    device, as rank 0's recipe names it. `own`: claims this process's device from that name.
    FirstAbsent if rank 0 has ended; RecipeError if there is no such device, or it is taken.
    """
    if place.rank != 0:
        # Not within torch, where a process is deaf to signals.
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        _wait_for(lambda: _answers(address))
    timeout = timedelta(seconds=timeout_s)
    store = _store(place, timeout)
    if place.rank == 0:
        store.set(_READY, wanted)
    else:
        _wait_for(lambda: store.check([_READY]) or store.check([_ABSENT]))
        if store.check([_ABSENT]):
            code = ExitCode(int(store.get(_ABSENT)))
            store.add(_HEARD, 1)
            raise FirstAbsent(code)
        wanted = store.get(_READY).decode()
    global _has_met
    _has_met = True
    store.set_timeout(timeout)
    device = own(wanted)
    on_gpu = device.type == "cuda"
    if on_gpu:
        _refuse_shared(store, place, device)
    # The number of its device lets NCCL connect now, and split the groups of a mesh off later;
    # without it NCCL guesses one from the rank.
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )
    return Control(dist.new_group(backend="gloo", timeout=timeout))


def _refuse_shared(store: Store, place: Place, device: torch.device) -> None:
    """Two processes on one GPU would each wait for the other's kernels to end."""
    own = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if own is not None and store.add(f"{_CLAIMED}/{own}", 1) > 1:
        raise RecipeError(
            f"machine.device: rank {place.rank} of {socket.gethostname()} computes on the same GPU "
            f"as another rank ({own}); it sees {torch.cuda.device_count()}, and {place.local_size} "
            "processes were started on that host",
            "start one process for each GPU, or give each its own (srun --gpus-per-task=1)",
        )


def reporting_absence(place: Place | None, body: Callable[[], ExitCode]) -> ExitCode:
    """Do `body`, and let the others know, whom srun does not end, if rank 0 never meets them."""
    try:
        code = body()
    except Exception as error:
        _report_absence(place, getattr(error, "exit_code", ExitCode.FAILED))
        raise
    _report_absence(place, code)
    return code


def _report_absence(place: Place | None, code: ExitCode) -> None:
    if _has_met or place is None or place.rank != 0:
        return
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Under torchrun its agent has the port, and ends the others.
    with suppress(RuntimeError):
        store = TCPStore(*address, place.size, is_master=True, wait_for_workers=False)
        store.set(_ABSENT, str(int(code)))
        until = time.monotonic() + _HEARD_WITHIN_S
        while store.add(_HEARD, 0) < place.size - 1 and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)


def _store(place: Place, timeout: timedelta) -> Store:
    """Rank 0 listens on the port that its supervisor has kept; elsewhere torch does as usual."""
    kept = os.environ.pop(KEPT_PORT, None) if place.rank == 0 else None
    if kept is None:
        store: Store = next(iter(rendezvous("env://")))[0]
        return store
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        place.size,
        is_master=True,
        timeout=timeout,
        master_listen_fd=int(kept),
    )


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
    control: Control,
    layout: Layout,
    device: torch.device,
    timeout_s: Seconds = COLLECTIVE_TIMEOUT_S,
) -> World:
    """Lay the processes out; collective. `control`: from `meet`. RecipeError if they do not fit."""
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
    saving = Control(dist.new_group(backend="gloo", timeout=timeout), "saving")
    # A mesh makes its groups with the backend's own default, 10 minutes for NCCL: they would fail
    # before the watchdog could say who did not arrive.
    for group in (None, control.group, *mesh.get_all_groups()):
        set_timeout(timeout, group)
    return World(
        **asdict(place), layout=layout, mesh=mesh, device=device, control=control, saving=saving
    )


def device_of(place: Place, device: torch.device) -> torch.device:
    """The device of this process, claimed, where a single process would use `device`. RecipeError
    if processes cannot share that kind of device, or this one sees none.

    A process that sees fewer devices than there are processes on its host was given its own, as
    by `srun --gpus-per-task=1`: local rank 3 then sees one device, whose number is 0. That nobody
    else was given the same is found out when all meet.
    """
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise RecipeError(
            f"machine.device: {place.size} processes cannot train on {device.type}",
            "use --device cpu, or one process",
        )
    seen = torch.cuda.device_count()
    if seen == 0:
        raise RecipeError(
            f"machine.device: local rank {place.local_rank} sees no GPU",
            "look at CUDA_VISIBLE_DEVICES, or use --device cpu",
        )
    return claim(torch.device("cuda", place.local_rank % seen))
