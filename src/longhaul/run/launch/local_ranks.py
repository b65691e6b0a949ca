"""The ranks of one node, where each node runs its own part of a job (Kubernetes, SkyPilot)."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.signals import NOTICES
from longhaul.core.units import Seconds

_GRACE_S: Seconds = 60.0
"""For the other ranks, once one has ended; they may be saving."""
_LOOK_EVERY_S: Seconds = 0.1
_WORST_FIRST = (ExitCode.NEEDS_PERSON, ExitCode.RECIPE_WRONG, ExitCode.DATA_WRONG,
                ExitCode.INTERRUPTED, ExitCode.START_AGAIN)  # fmt: skip
_PORT = "29500"


@dataclass(frozen=True)
class NodePlace:
    """Where a node stands among those of the job."""

    rank: int
    nodes: int
    address: str
    """Of the first node."""
    port: str = _PORT


def node_place(environment: Mapping[str, str]) -> NodePlace:
    """The place that JobSet, PyTorchJob or SkyPilot has put into the environment; NeedsPerson if
    there is none.
    """
    try:
        if "SKYPILOT_NODE_RANK" in environment:
            rank, addresses = environment["SKYPILOT_NODE_RANK"], environment["SKYPILOT_NODE_IPS"]
            every = addresses.split()
            return NodePlace(int(rank), len(every), every[0])
        port = environment.get("MASTER_PORT", _PORT)
        if "PET_NODE_RANK" in environment:
            nodes = int(environment["PET_NNODES"])
            address = environment["MASTER_ADDR"]
            return NodePlace(int(environment["PET_NODE_RANK"]), nodes, address, port)
        rank = environment["JOB_COMPLETION_INDEX"]
        return NodePlace(int(rank), int(environment["NNODES"]), environment["MASTER_ADDR"], port)
    except (KeyError, ValueError, IndexError) as error:
        raise NeedsPerson(
            f"the environment does not say which node of the job this is ({error!r})",
            "start it by the manifest that `longhaul launch` prints",
        ) from error


def run_ranks(words: Sequence[str], place: NodePlace, workers: int) -> ExitCode:
    """Run the command once for each rank of this node, with torchrun's environment. A scheduler's
    notice reaches every rank. The worst exit code of all is returned.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def forward(number: int, frame: FrameType | None) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, forward) for number in NOTICES}
    try:
        for local in range(workers):  # one by one, so that a notice reaches those begun
            environment = _environment(place, local, workers)
            processes.append(subprocess.Popen(words, env=environment))
        return _wait(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _environment(place: NodePlace, local: int, workers: int) -> dict[str, str]:
    size = place.nodes * workers
    inherited = {n: v for n, v in os.environ.items() if n not in ("RANK", "WORLD_SIZE")}
    if size == 1:
        return inherited
    return inherited | {
        "RANK": str(place.rank * workers + local), "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": place.address, "MASTER_PORT": place.port,
    }  # fmt: skip


def _wait(processes: Sequence[subprocess.Popen[bytes]]) -> ExitCode:
    deadline: float | None = None
    while any(process.poll() is None for process in processes):
        if deadline is None and any(process.poll() for process in processes):
            deadline = time.monotonic() + _GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(_LOOK_EVERY_S)
    codes = {process.returncode for process in processes} - {None}
    if codes == {0}:
        return ExitCode.FINISHED
    return next((code for code in _WORST_FIRST if code in codes), ExitCode.FAILED)
