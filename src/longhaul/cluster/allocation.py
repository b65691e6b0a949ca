"""The nodes that a job was given: may they be used, and what is each for? Pure judgement."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from longhaul.core.errors import ExitCode


@dataclass(frozen=True)
class Given:
    """A node of the allocation."""

    name: str
    address: str
    command: tuple[str, ...] = ()
    """What starts a process there; empty: the job's part runs there itself."""


@dataclass(frozen=True)
class Allocation:
    """Whether a job begins on the nodes it was given."""

    code: ExitCode
    """FINISHED: it begins. START_AGAIN: it goes back into the queue, the bad nodes excluded.
    NEEDS_PERSON: the exclusion was in force, and has had no effect."""
    reason: str
    used: tuple[Given, ...] = ()
    """The nodes that are used, spares last."""
    excluded: tuple[str, ...] = ()
    """The names that no later start may get."""


def judge(
    given: Sequence[Given], needed: int, excluded: Collection[str], in_force: Collection[str]
) -> Allocation:
    """Compare the nodes of a job with those that were evicted.

    `excluded`: names that longhaul has evicted. `in_force`: names that the scheduler itself says it
    leaves out; where one of these was given all the same, exclusion has no effect here, and a new
    start would get it again.
    """
    every = tuple(dict.fromkeys([*excluded, *in_force]))
    bad = [node.name for node in given if node.name in every]
    broken = [name for name in bad if name in in_force]
    if broken:
        said = f"the scheduler gave {', '.join(broken)} although it excludes it for this job"
        return Allocation(ExitCode.NEEDS_PERSON, said, excluded=every)
    if bad:
        said = f"the job was given {', '.join(bad)}, which was evicted"
        return Allocation(ExitCode.START_AGAIN, said, excluded=every)
    if len(given) < needed:
        said = f"the job was given {len(given)} nodes and needs {needed}"
        return Allocation(ExitCode.START_AGAIN, said, excluded=every)
    names = ", ".join(node.name for node in given)
    spares = len(given) - needed
    more = f", {spares} of them spare" if spares else ""
    none = f"; none of {', '.join(every)} is among them" if every else ""
    return Allocation(ExitCode.FINISHED, f"nodes: {names}{more}{none}", tuple(given), every)


def after_qualification(allocation: Allocation, unfit: dict[str, str], needed: int) -> Allocation:
    """What follows where nodes have not qualified; `unfit` is name → reason.

    If enough others are there, they are left out. If none is fit, the check or the cluster is to
    blame, and a person must look; else the job goes back into the queue without them.
    """
    if not unfit:
        return allocation
    fit = tuple(node for node in allocation.used if node.name not in unfit)
    every = tuple(dict.fromkeys([*allocation.excluded, *unfit]))
    said = "; ".join(f"{name} is not fit: {reason}" for name, reason in unfit.items())
    if not fit:
        return Allocation(ExitCode.NEEDS_PERSON, f"no node is fit: {said}", excluded=every)
    if len(fit) < needed:
        return Allocation(ExitCode.START_AGAIN, said, excluded=every)
    return Allocation(ExitCode.FINISHED, f"{said}; going on without", fit, every)


def node_entries(used: Sequence[Given], needed: int, workers: int) -> list[dict[str, Any]]:
    """`supervise.node` of a recipe: the first `needed` nodes train, the others are spares."""
    return [
        {
            "name": node.name,
            "slots": workers,
            "command": list(node.command),
            "address": node.address,
            "spare": number >= needed,
        }
        for number, node in enumerate(used)
    ]


def evicted_hosts(by_part: dict[str, str], left_out: Collection[str]) -> tuple[str, ...]:
    """Names of nodes that are cordoned (part → host) or that the run has left out, each once."""
    return tuple(sorted({*by_part.values(), *left_out}))
