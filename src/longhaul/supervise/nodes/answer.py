"""What follows for nodes from the end of an attempt: cordon, leave out, probe. Pure judgement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from longhaul.core.units import Seconds
from longhaul.supervise.causes import Cause, Remedy
from longhaul.supervise.nodes.ledger import Node
from longhaul.supervise.nodes.placement import Machine, World
from longhaul.supervise.nodes.reputation import WorldSpan, after_hang
from longhaul.supervise.restart import DAY_S, Failure

SILENT_CORRUPTION = "silent-corruption"
NODE_GONE = "node-gone"
REPEATS = 2
"""Failures that began on one node within a day, from which a run goes on without it."""
CORRUPT_A_DAY = 3
"""Silent corruptions within a day after which a machine that is the only one is not used again."""
_SOFTWARE = "unknown: "
"""Blamed on the program first: what no signature knows would follow its rank to any node."""


@dataclass(frozen=True, slots=True)
class MachineVerdict:
    """What rank 0 says of the machine on which other ranks stand (`machine-verdict`)."""

    kind: str
    """`corrupt`: they compute wrong numbers, silently. `straggler`: they keep others waiting."""
    ranks: tuple[int, ...]
    """None where it cannot be told whose numbers are wrong."""
    reason: str
    sound_step: int | None = None
    """Of `corrupt`: newest step at which everybody still agreed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be done about nodes."""

    node: Machine | None
    """Where the failure began; None: nobody knows, or it was no machine's fault."""
    reason: str = ""
    cordoned: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name → parts on which nothing runs any more."""
    left_out: tuple[str, ...] = ()
    """Names of nodes without which the run goes on."""
    suspects: tuple[str, ...] = ()
    """Names of nodes that must pass a probe before they are used again."""


def answer(
    cause: Cause,
    world: World,
    worlds: Sequence[WorldSpan],
    failures: Sequence[tuple[Node, Seconds]],
    verdict: MachineVerdict | None,
    now: Seconds,
) -> Answer:
    """What follows for nodes (incidents M1, M2, M6, M9, M13).

    `world`: that of the attempt. `worlds`: of all attempts of this run, the one that has just ended
    last. `failures`: nodes that have ended attempts, and when.
    """
    if cause.name == SILENT_CORRUPTION:
        return _corrupt(world, verdict)
    blamed = world.machine_of(cause.rank) if cause.rank is not None else None
    if cause.name == "hang":
        newcomers, reason = after_hang(worlds, blamed.node if blamed else None)
        if newcomers:
            parts = frozenset().union(*(node.parts for node in newcomers))
            guilty = [machine for machine in world.machines if machine.node.shares(parts)]
            return Answer(blamed if blamed in guilty else guilty[0], reason,
                          left_out=tuple(machine.name for machine in guilty))  # fmt: skip
    if blamed is None or not of_machine(cause):
        return Answer(None)
    where = f"{cause.name} on {blamed.name}"
    if cause.remedy == "cordon":  # hardware that is broken for good (incident M6)
        return Answer(blamed, where, {blamed.name: tuple(sorted(blamed.node.parts))})
    times = 1 + sum(
        now - time <= DAY_S and bool(blamed.node.shares(node.parts)) for node, time in failures
    )
    if times >= REPEATS and len(world.machines) > 1:
        reason = f"{where}, which has ended {times} attempts within a day"
        return Answer(blamed, reason, left_out=(blamed.name,), suspects=(blamed.name,))
    suspects = (blamed.name,) if cause.remedy == "probe" else ()
    return Answer(blamed, where, suspects=suspects)


def of_machine(cause: Cause) -> bool:
    """Whether a machine may be to blame, and not the program, the recipe, or another rank."""
    software = cause.name.startswith(_SOFTWARE) or cause.remedy == "stop"
    return not software and not cause.consequence


def counted_remedy(cause: Cause, others: bool) -> Remedy:
    """The remedy that a failure is counted with: a node that must not be used any more need not end
    a run that has others.
    """
    return "restart" if others and cause.remedy == "cordon" else cause.remedy


def accused(cause: Cause, verdict: MachineVerdict | None) -> Cause:
    """The cause with the rank that the verdict names: all leave with the same last words."""
    if cause.name != SILENT_CORRUPTION or verdict is None:
        return cause
    return replace(cause, rank=next(iter(verdict.ranks), None))


def on_one_machine(
    cause: Cause, verdict: MachineVerdict | None, before: Sequence[Failure], now: Seconds
) -> Cause:
    """The cause with the remedy that it has where a recipe names no nodes.

    Of two ranks that differ nobody can tell which is wrong: a machine that passes its probe is
    kept, unless it computes wrong again and again.
    """
    if cause.name != SILENT_CORRUPTION or verdict is None or verdict.ranks:
        return cause
    times = sum(f.cause == SILENT_CORRUPTION and now - f.time <= DAY_S for f in before)
    return cause if times >= CORRUPT_A_DAY else replace(cause, remedy="probe")


def distrusted(steps: Sequence[int], verdict: MachineVerdict) -> list[int]:
    """Those of the checkpoints that may hold wrong numbers, newest first."""
    sound = verdict.sound_step
    return sorted((step for step in steps if sound is None or step > sound), reverse=True)


def _corrupt(world: World, verdict: MachineVerdict | None) -> Answer:
    """Wrong numbers are a node's if ranks of another one are right: those are the witness."""
    everyone = tuple(machine.name for machine in world.machines)
    if verdict is None or not verdict.ranks:
        reason = "nobody knows whose numbers are wrong" if verdict is None else verdict.reason
        return Answer(None, reason, suspects=everyone)
    guilty = {m.name: m for m in map(world.machine_of, verdict.ranks)}
    if len(guilty) == len(everyone):
        reason = f"{verdict.reason}; no other node is there to bear witness"
        return Answer(None, reason, suspects=everyone)
    return Answer(
        next(iter(guilty.values())), verdict.reason,
        {name: tuple(sorted(machine.node.parts)) for name, machine in guilty.items()},
    )  # fmt: skip
