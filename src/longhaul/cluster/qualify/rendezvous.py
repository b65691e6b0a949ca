"""Ranks that meet, hand in what they have and wait for each other, each time with a deadline: a key
and value store that rank 0 serves. No rank waits in a collective for one that is not there.
"""

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from longhaul.core.errors import NeedsPerson, UsageError
from longhaul.core.units import Seconds

_LOOK_EVERY_S: Seconds = 0.02
_ALIASES = {
    "RANK": ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK"),
    "WORLD_SIZE": ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
}
"""What torchrun, srun and mpirun call the same."""
_PORT = 29_500


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands among all."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    address: str = "127.0.0.1"
    port: int = _PORT
    served: bool = False
    """The launcher serves a store at that port already, as torchrun does."""


def place_of(environment: Mapping[str, str]) -> Place:
    """The place that a launcher has put into the environment; alone if there is none.

    UsageError if there are several ranks and nothing says where rank 0 is.
    """

    def number(name: str, otherwise: int) -> int:
        for key in (name, *_ALIASES.get(name, ())):
            if key in environment:
                try:
                    return int(environment[key])
                except ValueError:
                    raise UsageError(f"{key}: {environment[key]} is no number") from None
        return otherwise

    # An interactive shell on a node of Slurm has these variables too, and is one task.
    size = number("WORLD_SIZE", 1)
    if size == 1:
        return Place()
    if "MASTER_ADDR" not in environment:
        raise UsageError(
            f"{size} ranks were started and MASTER_ADDR is not set",
            "set it to the host of rank 0, as: MASTER_ADDR=$(scontrol show hostnames | head -n1)",
        )
    return Place(
        number("RANK", 0), size, number("LOCAL_RANK", 0), environment["MASTER_ADDR"],
        number("MASTER_PORT", _PORT), environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )  # fmt: skip


class Rendezvous:
    """The ranks of one battery."""

    def __init__(self, place: Place, within_s: Seconds) -> None:
        self.place = place
        try:
            self.store = dist.TCPStore(  # type: ignore[attr-defined]
                place.address, place.port, is_master=place.rank == 0 and not place.served,
                timeout=timedelta(seconds=within_s), wait_for_workers=False,
            )  # fmt: skip
        except RuntimeError as error:
            where = f"{place.address}:{place.port}"
            raise NeedsPerson(
                f"rank {place.rank} did not reach rank 0 at {where} within {within_s:.0f} s",
                "look at the network between the nodes, and whether rank 0 was started",
            ) from error

    def hand_in(self, phase: str, value: Any = None) -> None:
        """Say that this rank has come to a phase, and with what; NeedsPerson without a store."""
        with self._reached():
            self.store.set(f"{phase}/{self.place.rank}", json.dumps(value))

    def gather(
        self, phase: str, within_s: Seconds, ranks: Collection[int] | None = None
    ) -> dict[int, Any]:
        """Rank → what it handed in; those that did not within the time are not among them.

        NeedsPerson as soon as the store has gone: what is waited for cannot come any more.
        """
        waited = set(range(self.place.size) if ranks is None else ranks)
        until = time.monotonic() + within_s
        found: dict[int, Any] = {}
        while waited:
            with self._reached():
                for rank in sorted(waited):
                    if self.store.check([f"{phase}/{rank}"]):
                        found[rank] = json.loads(self.store.get(f"{phase}/{rank}"))
                        waited.discard(rank)
            if time.monotonic() > until:
                break
            if waited:
                time.sleep(_LOOK_EVERY_S)
        return {rank: found[rank] for rank in sorted(found)}

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            where = f"{self.place.address}:{self.place.port}"
            raise NeedsPerson(
                f"rank {self.place.rank} lost rank 0, and the store at {where} with it",
                "see how rank 0 ended; if its node has gone, qualify the others without it",
            ) from error

    def announce(self, what: str, value: Any) -> None:
        """What rank 0 has to say to all."""
        self.store.set(f"all/{what}", json.dumps(value))

    def hear(self, what: str, within_s: Seconds) -> Any:
        """What rank 0 has announced; None if it has not within the time."""
        until = time.monotonic() + within_s
        try:
            while not self.store.check([f"all/{what}"]):
                if time.monotonic() > until:
                    return None
                time.sleep(_LOOK_EVERY_S)
            return json.loads(self.store.get(f"all/{what}"))
        except RuntimeError:  # rank 0 has gone, and its store with it
            return None

    def serve_clock(self, ranks: Collection[int], within_s: Seconds) -> None:
        """Rank 0: answer each rank's question for the time as it comes."""
        waited = set(ranks)
        until = time.monotonic() + within_s
        tries = dict.fromkeys(waited, 0)
        while waited and time.monotonic() < until:
            for rank in sorted(waited):
                key = f"clock/{rank}/{tries[rank]}"
                if self.store.check([f"{key}/asked"]):
                    self.store.set(f"{key}/answer", repr(time.time()))
                    tries[rank] += 1
                    if tries[rank] == CLOCK_TRIES:
                        waited.discard(rank)

    def clock_offset(self, within_s: Seconds) -> tuple[Seconds, Seconds] | None:
        """The own clock minus rank 0's, and how uncertain that is: half the shortest round trip
        (F. Cristian, Probabilistic clock synchronization, 1989). None if nobody answered.
        """
        best: tuple[Seconds, Seconds] | None = None
        try:
            for number in range(CLOCK_TRIES):
                key = f"clock/{self.place.rank}/{number}"
                began = time.time()
                self.store.set(f"{key}/asked", "")
                self.store.wait([f"{key}/answer"], timedelta(seconds=within_s))
                half = (time.time() - began) / 2
                offset = began + half - float(self.store.get(f"{key}/answer"))
                if best is None or half < best[1]:
                    best = (offset, half)
        except RuntimeError:
            return best
        return best


CLOCK_TRIES = 5


def boot_id() -> str:
    """The running system: ranks on one machine share it, whatever their nodes are called."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return os.uname().nodename
