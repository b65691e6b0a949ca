"""All that one rank does: meet the others, measure its node and its links, hand in. Rank 0 gathers
what came. It decides nothing, and no wait of it is without a deadline.
"""

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from longhaul.cluster.qualify import host, links, memory, products, storage
from longhaul.cluster.qualify.records import GROUPS, Group, Measurement, Report, report_of
from longhaul.cluster.qualify.rendezvous import Place, Rendezvous, boot_id
from longhaul.core.machine import machine
from longhaul.core.units import Bytes, Seconds
from longhaul.supervise.nodes.ledger import node_of, read_node
from longhaul.supervise.nodes.placement import NODE, NODE_PARTS

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What is to be done."""

    groups: tuple[Group, ...] = GROUPS
    quick: bool = False
    folder: Path = Path()
    """Whose medium is measured."""
    remote: tuple[str, ...] = ()
    """Addresses of remote tiers."""
    checkpoint: Bytes = 0
    """Size of the recipe's; 0 if there is no recipe."""
    free_wanted: Bytes = storage.NEEDED
    seconds: Seconds | None = None
    """Of load on each device; 2 when quick, 120 otherwise."""
    meet_s: Seconds = 120.0
    """Within which all ranks must have come."""
    exchange_s: Seconds = 30.0
    """Within which any exchange between ranks must end."""
    local_s: Seconds = 600.0
    """Within which a rank must have measured its own node."""

    @property
    def load_s(self) -> Seconds:
        """Seconds of load on each device."""
        return self.seconds if self.seconds is not None else 2.0 if self.quick else 120.0


@dataclass(frozen=True, slots=True)
class Gathered:
    """What rank 0 has in hand at the end."""

    reports: tuple[Report, ...]
    size: int
    absent: tuple[tuple[int, str, str], ...] = ()
    """Rank, its node as far as known, and what it did not come to."""


def identity() -> tuple[str, tuple[str, ...]]:
    """Name and parts of this node; those that a supervisor has given win, imitated ones too."""
    if name := os.environ.get(NODE):
        parts = filter(None, os.environ.get(NODE_PARTS, "").split(","))
        return name, tuple(sorted(node_of(name, parts).parts))
    node = read_node(host=platform.node())
    return node.host, tuple(sorted(node.parts))


def alone(options: Options, say: Say) -> Gathered:
    """The battery of one process on its own node."""
    chosen = products.units()
    found = _locally(options, chosen, say, leads=True)
    if "links" in options.groups:
        why = "one process: start it under torchrun or srun, a rank for each device"
        found += [Measurement(group="links", name=name, skipped=why)
                  for name in ("collectives", "pair rate", "hang")]  # fmt: skip
    return Gathered((_report(0, found, chosen),), 1)


def together(options: Options, place: Place, say: Say) -> tuple[Gathered | None, Rendezvous]:
    """The battery of all ranks; what was gathered in rank 0, None in the others."""
    rendezvous = Rendezvous(place, options.meet_s)
    name, _ = identity()
    chosen = products.units(place.local_rank)
    serial = boot_id() if chosen[0].device.type == "cpu" else f"{place.rank}"
    rendezvous.hand_in("met", {"host": name, "boot": serial})
    met = rendezvous.gather("met", options.meet_s)
    absent = [(rank, "", "the rendezvous") for rank in range(place.size) if rank not in met]
    found = _in_turn(options, chosen, rendezvous, met, say)
    if "host" in options.groups:
        found += _clock(rendezvous, options, sorted(met))
    if "links" in options.groups:
        if absent:
            missing = ", ".join(str(rank) for rank, *_ in absent)
            why = f"rank {missing} is absent, and links are measured with all"
            found.append(Measurement(group="links", name="collectives", skipped=why))
        else:
            found += _linked(options, chosen, rendezvous, met, say)
    rendezvous.hand_in("report", _report(place.rank, found, chosen).as_json())
    if place.rank:
        return None, rendezvous
    reports = rendezvous.gather("report", 2 * options.exchange_s, list(met))
    absent += [
        (rank, str(met[rank]["host"]), _last_seen(rendezvous, rank))
        for rank in met if rank not in reports
    ]  # fmt: skip
    return Gathered(tuple(report_of(reports[r]) for r in sorted(reports)), place.size,
                    tuple(absent)), rendezvous  # fmt: skip


def _last_seen(rendezvous: Rendezvous, rank: int) -> str:
    phases = {"left": "its report", "joining": "the end of the first collective",
              "arrived": "the first collective", "local": "the forming of the group",
              "met": "the end of its own measurements"}  # fmt: skip
    return next(what for key, what in phases.items() if rendezvous.store.check([f"{key}/{rank}"]))


def _report(rank: int, found: Sequence[Measurement], chosen: Sequence[products.Unit]) -> Report:
    name, parts = identity()
    device = chosen[0].device
    kind = str(machine()["cpu"])
    if device.type == "cuda":
        kind = torch.cuda.get_device_name(device)
    return Report(rank=rank, host=name, parts=parts, hardware=kind, time=time.time(),
                  measurements=tuple(found))  # fmt: skip


def _in_turn(
    options: Options, chosen: Sequence[products.Unit], rendezvous: Rendezvous, met: dict[int, Any],
    say: Say,
) -> list[Measurement]:  # fmt: skip
    """The local part. Ranks that share the processor of one machine take turns, or each would be
    the other's busy neighbour.
    """
    own = rendezvous.place.rank
    sharing = [rank for rank in sorted(met) if met[rank]["boot"] == met[own]["boot"]]
    before = sharing[: sharing.index(own)]
    rendezvous.gather("local", options.local_s if before else 0.0, before)
    leads = own == min(rank for rank in met if met[rank]["host"] == met[own]["host"])
    found = _locally(options, chosen, say, leads=leads)
    rendezvous.hand_in("local")
    after = [rank for rank in sorted(met) if rank != own]
    rendezvous.gather("local", options.local_s, after)
    return found


def _locally(
    options: Options, chosen: Sequence[products.Unit], say: Say, *, leads: bool
) -> list[Measurement]:
    """What needs no other rank; `leads`: this rank measures what its node has once."""
    gpus = chosen[0].device.type == "cuda"
    found: list[Measurement] = []
    if not gpus and not leads:  # the cores are those of the rank that leads
        return found
    before = memory.counters()
    if "compute" in options.groups:
        say("compute: products, repeatability")
        found += products.repeatability(chosen)
        found += products.speeds(chosen, options.load_s, _driver)
    if "memory" in options.groups:
        say("memory: rate, patterns, counters")
        found += memory.rates(chosen, 0.5 if options.quick else 3.0)
        found += memory.patterns(chosen, options.quick)
        if leads:
            found += memory.counted(before, gpus, gpus or _has_edac())
    if "links" in options.groups:
        found += links.of_host(chosen)
    if not leads:
        return found
    if "storage" in options.groups:
        say("storage: throughput, fsync, small files, writers")
        found += storage.storage(
            options.folder, quick=options.quick, checkpoint=options.checkpoint,
            free_wanted=options.free_wanted,
        )  # fmt: skip
        found += [storage.remote(address) for address in options.remote]
        if not options.remote:
            why = "no remote tier is named (checkpoint.remote of a recipe, or --remote)"
            found.append(Measurement(group="storage", name="remote tier", skipped=why))
    if "host" in options.groups:
        say("host: versions, limits, errors, import of torch")
        found += host.host()
    return found


def _driver(unit: products.Unit) -> str:
    if unit.device.type != "cuda":
        return ""
    return host.throttle_reasons(unit.device.index or 0)


def _has_edac(root: Path = Path("/")) -> bool:
    return any((root / "sys/devices/system/edac/mc").glob("mc*"))


def _clock(rendezvous: Rendezvous, options: Options, ranks: Sequence[int]) -> list[Measurement]:
    others = [rank for rank in ranks if rank]
    if rendezvous.place.rank == 0:
        rendezvous.serve_clock(others, options.exchange_s)
        return []
    offset = rendezvous.clock_offset(options.exchange_s)
    if offset is None:
        why = "rank 0 did not answer for the time"
        return [Measurement(group="host", name="clock", skipped=why)]
    return [host.clock(*offset)]


def _linked(
    options: Options, chosen: Sequence[products.Unit], rendezvous: Rendezvous, met: dict[int, Any],
    say: Say,
) -> list[Measurement]:  # fmt: skip
    """Through the process group; a rank that does not come ends all of it at the deadline."""
    say("links: hang test, collectives, pairs of nodes")
    found: list[Measurement] = []
    device = chosen[0].device
    names = {rank: str(met[rank]["host"]) for rank in sorted(met)}
    leaders = [min(r for r in names if names[r] == name) for name in dict.fromkeys(names.values())]
    try:
        group = links.Links(rendezvous, device, options.exchange_s)
        group.first_collective()
        if not _all_left(rendezvous, options.exchange_s):
            raise links.Unreached("not all ranks left the first collective")
        found.append(Measurement(group="links", name="hang"))
        found += group.collectives(options.quick)
        found += group.pairs(leaders, [names[rank] for rank in leaders])
        if len(leaders) < 2:
            why = "there is one node"
            found.append(Measurement(group="links", name="pair rate", skipped=why))
        dist.destroy_process_group()
    except links.Unreached as error:
        found.append(Measurement(group="links", name="hang", wrong=str(error)))
    return found


def _all_left(rendezvous: Rendezvous, within_s: Seconds) -> bool:
    """All ranks take the same decision: rank 0's."""
    if rendezvous.place.rank == 0:
        there = len(rendezvous.gather("left", within_s)) == rendezvous.place.size
        rendezvous.announce("linked", there)
        return there
    return bool(rendezvous.hear("linked", 2 * within_s))
