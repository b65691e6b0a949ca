"""Who is used next, and why others are not; with fewer nodes, fewer replicas. Pure judgement."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from longhaul.core.units import Seconds
from longhaul.parallel.layout import Layout
from longhaul.supervise.nodes.ledger import Node, NodeEvent, concerning
from longhaul.supervise.nodes.placement import Machine, NodePlan, World
from longhaul.supervise.nodes.reputation import admit, by_reliability, refusal
from longhaul.supervise.restart import DAY_S


def fit(wanted: Layout, nodes: int, per_node: int, sequences: int) -> tuple[Layout | None, str]:
    """The largest layout that so many nodes carry, with the same mathematics, and why it is that;
    None: there are too few for any.

    Tensor and pipeline ways are kept, because each rank's part of a layer is laid out for them;
    sharding is kept as long as there are enough processes for it, because memory depends on it.
    Replicas that would not make a step shorter are left out: with 8 sequences, 5 replicas take as
    long as 4.
    """
    processes = nodes * per_node
    inner = wanted.tensor * wanted.pipeline
    if processes >= wanted.size:
        return wanted, "every node that is needed"
    if processes < inner:
        return None, f"{processes} processes are fewer than the {inner} that the model needs"
    if replicas := processes // (inner * wanted.shard):
        layout = replace(wanted, replicate=_useful(replicas, wanted.shard, sequences))
        said = f"{layout.replicate} of {wanted.replicate} replicas"
    else:
        shard = _useful(processes // inner, 1, sequences)
        layout = replace(wanted, replicate=1, shard=shard)
        said = (
            f"one replica in {shard} instead of {wanted.shard} shards: each process holds "
            f"{wanted.shard / shard:.2g} times as much"
        )
    before = math.ceil(sequences / wanted.data_size)
    slower = math.ceil(sequences / layout.data_size) / before
    reason = (
        f"{nodes} nodes for {math.ceil(wanted.size / per_node)}: {said}, the same {sequences} "
        f"sequences a step, each step about {slower:.2g} times as long"
    )
    return layout, reason


def _useful(ways: int, of_each: int, sequences: int) -> int:
    """The fewest of up to `ways` ways with which a step is as short as with all of them."""
    rounds = math.ceil(sequences / (ways * of_each))
    return next(n for n in range(1, ways + 1) if math.ceil(sequences / (n * of_each)) <= rounds)


PROBE_AGAIN_S: Seconds = 600.0
"""After a probe that was not passed; what cures a node by then is a person or a restart of it."""
LEFT_OUT_S = DAY_S
"""What a run has left out on suspicion is not used by it again for so long, unless it must be."""
_TELLING = ("probed", "failed", "corrected", "cordoned")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A node that a run goes on without, on suspicion."""

    node: Node
    reason: str
    time: Seconds


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known when the next world is chosen."""

    machines: tuple[Machine, ...]
    """In the recipe's order, those that came in place of others last."""
    plan: NodePlan
    events: Sequence[NodeEvent] = ()
    before: Collection[str] = ()
    """Names of the last world, whose nodes are kept if nothing is known against them."""
    gone: Mapping[str, str] = field(default_factory=dict)
    """Name → why, of those that do not answer."""
    left_out: tuple[LeftOut, ...] = ()
    suspects: frozenset[str] = frozenset()
    """Names of those that must pass a probe before they are used again."""
    slow: frozenset[str] = frozenset()
    """Names of those that another one is to take the place of, if there is one."""
    now: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Who is used next."""

    world: World | None
    reason: str
    """Of the layout, or why there is none."""
    probe: tuple[Machine, ...] = ()
    """Those of the world that must pass a probe before; then choose again."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Name → why, of each that is not in the world."""

    def without(self) -> str:
        """Who is not there, in words."""
        return "; ".join(f"{name}: {why}" for name, why in self.absent.items())


def choose(standing: Standing) -> Choice:
    """The largest world of nodes that nothing is known against (incidents M1, M8 to M10, M12).

    Nodes that a run has left out on suspicion are taken back before it stops for want of them;
    those that are cordoned, gone, or have not passed a probe never are.
    """
    absent = _unusable(standing)
    suspected = {
        machine.name: left.reason
        for left in still_left_out(standing.left_out, standing.events, standing.now)
        for machine in standing.machines
        if machine.node.shares(left.node.parts)
    }
    usable = [machine for machine in standing.machines if machine.name not in absent]
    choice = _chosen(standing, [m for m in usable if m.name not in suspected])
    if choice.world is None and suspected:
        choice = _chosen(standing, usable)
    inside = frozenset(choice.world.names if choice.world else ())
    why = {m.name: "a spare" for m in usable} | suspected | absent
    absent = {m.name: why[m.name] for m in standing.machines if m.name not in inside}
    return replace(choice, absent=absent)


def _unusable(standing: Standing) -> dict[str, str]:
    found = dict(standing.gone)
    for machine in standing.machines:
        refused = refusal(machine.node, standing.events)
        own = concerning(machine.node, standing.events)
        # A person's release asks for another try at once.
        last = [e for e in own if e.kind in ("probed", "released")][-1:]
        if refused:
            found[machine.name] = refused
        elif last and not last[0].passed and standing.now - last[0].time < PROBE_AGAIN_S:
            found.setdefault(machine.name, f"it has not passed its probe: {last[0].reason}")
    return found


def still_left_out(
    left_out: Iterable[LeftOut], events: Sequence[NodeEvent], now: Seconds
) -> list[LeftOut]:
    """Those that a run goes on without: for a day, or until a person releases them."""
    return [
        left
        for left in left_out
        if now - left.time < LEFT_OUT_S
        and not any(
            e.kind == "released" and e.time > left.time for e in concerning(left.node, events)
        )
    ]


def _chosen(standing: Standing, usable: Sequence[Machine]) -> Choice:
    slots, plan = standing.machines[0].slots, standing.plan
    needed = math.ceil(plan.wanted.size / slots)
    preferred = _preferred(standing, usable)[:needed]
    layout, reason = fit(plan.wanted, len(preferred), slots, plan.sequences)
    if layout is None:
        return Choice(None, reason)
    names = {machine.name for machine in preferred[: math.ceil(layout.size / slots)]}
    chosen = tuple(machine for machine in standing.machines if machine.name in names)
    world = World(chosen, layout, plan.wanted.size)
    probe = tuple(machine for machine in chosen if must_be_probed(machine, standing))
    return Choice(world, reason, probe)


def _preferred(standing: Standing, usable: Sequence[Machine]) -> list[Machine]:
    """Best first: those that have just worked together, then the most reliable."""
    before = frozenset(standing.before)
    kept = [m for m in usable if m.name in before and m.name not in standing.slow]
    known = {machine.node for machine in kept}
    rest = [machine for machine in usable if machine.node not in known]
    by_node = {machine.node: machine for machine in sorted(rest, key=lambda m: m.spare)}
    ranked = by_reliability(list(by_node), standing.events, standing.now)
    others = [by_node[node] for node in ranked]
    fresh = [machine for machine in others if machine.name not in standing.slow]
    return [*kept, *fresh, *(m for m in others if m.name in standing.slow)]


def must_be_probed(machine: Machine, standing: Standing) -> bool:
    """Whether a usable node must pass a probe before it is used."""
    if machine.name in standing.suspects:
        return True
    if machine.name in standing.before:
        return False
    seen = [e for e in concerning(machine.node, standing.events) if e.kind in _TELLING]
    # The first world may be of nodes that the recipe names and nobody has probed, as long as
    # nothing is known against them; a ledger that runs share should know of their probes.
    own_ledger = standing.plan.settings.node_ledger is None
    if own_ledger and not standing.before and not machine.ordered and not seen:
        return False
    return admit(machine.node, standing.events, standing.now).verdict == "probe"


def can_do_without(standing: Standing, machine: Machine) -> bool:
    """Whether the run could go on without a node of its world."""
    out = LeftOut(machine.node, "", standing.now)
    choice = choose(replace(standing, left_out=(*standing.left_out, out)))
    return choice.world is not None and machine.name not in choice.world.names


def replaced_at_once(standing: Standing, world: World) -> list[str]:
    """Names of the slow nodes of a world that proven ones can take the place of now."""
    slow_here = standing.slow & frozenset(world.names)
    if not slow_here or not standing.plan.settings.replace_stragglers:
        return []
    choice = choose(standing)
    if choice.world is None or choice.probe or choice.world.shrunk:
        return []
    return sorted(slow_here - frozenset(choice.world.names))


def larger(standing: Standing, world: World) -> World | None:
    """The world that a shrunk one can grow to now; None if it cannot, or a probe is due first."""
    choice = choose(standing)
    if choice.world is None or choice.probe:
        return None
    return choice.world if choice.world.layout.size > world.layout.size else None
