"""Which rank stands on which node, what a worker knows of it, what a recipe says of nodes."""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.recover import NodeSection, SuperviseSection
from longhaul.logbook.folder import RunFolder
from longhaul.parallel.layout import LAYOUT, Layout, layout_for, usable_cores
from longhaul.supervise.nodes.ledger import Node, node_of

NODE = "LONGHAUL_NODE"
"""Environment variable of a worker: the name of its node."""
NODE_PARTS = "LONGHAUL_NODE_PARTS"
"""What that node is known by, separated by commas."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node that workers may run on."""

    name: str
    slots: int
    node: Node
    command: tuple[str, ...] = ()
    address: str = "127.0.0.1"
    spare: bool = False
    imitated: bool = False
    """Its parts were given: what this machine's kernel and GPUs tell is not about it."""
    ordered: bool = False
    """It came in place of another one; nobody has seen it before."""

    @classmethod
    def of(cls, entry: NodeSection, ordered: bool = False) -> "Machine":
        """The machine of a recipe's entry, its hardware not yet looked at."""
        node = node_of(entry.name, entry.identity)
        return cls(entry.name, entry.slots, node, entry.command, entry.address, entry.spare,
                   bool(entry.identity), ordered)  # fmt: skip


@dataclass(frozen=True, slots=True)
class World:
    """The machines of one attempt, in the order of their ranks."""

    machines: tuple[Machine, ...]
    layout: Layout
    full_size: int
    """Ranks that the run has at full strength."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of its machines."""
        return tuple(machine.name for machine in self.machines)

    @property
    def shrunk(self) -> bool:
        """It has fewer ranks than the recipe asks for."""
        return self.layout.size < self.full_size

    def ranks(self, machine: Machine) -> range:
        """Ranks on one of its machines."""
        first = self.machines.index(machine) * machine.slots
        return range(first, min(first + machine.slots, self.layout.size))

    def machine_of(self, rank: int) -> Machine:
        """The machine on which a rank stands."""
        return self.machines[rank // self.machines[0].slots]


@dataclass(frozen=True, slots=True)
class Post:
    """Where one rank stands."""

    environment: Mapping[str, str]
    host: str
    command: tuple[str, ...] = ()
    """What its process is started with; empty: a fork of this one."""


def posts_here(size: int) -> list[Post]:
    """So many ranks on this machine; one rank alone makes no process group."""
    world = _world(size, "127.0.0.1", size)
    return [
        Post(world | (_place(rank, rank, size) if size > 1 else {}), platform.node())
        for rank in range(size)
    ]


def posts_on(world: World) -> list[Post]:
    """The ranks of a world of nodes."""
    size, posts = world.layout.size, []
    # Threads are dealt out as at full strength: other counts would give other bits.
    shared = _world(size, world.machines[0].address, world.full_size)
    if world.shrunk:
        shared |= {LAYOUT: f"{world.layout.replicate} {world.layout.shard}"}
    for machine in world.machines:
        ranks = world.ranks(machine)
        about = {NODE: machine.name, NODE_PARTS: ",".join(sorted(machine.node.parts))}
        for rank in ranks:
            place = _place(rank, rank - ranks[0], len(ranks)) if size > 1 else {}
            posts.append(Post(shared | place | about, machine.name, machine.command))
    return posts


def within_layout(recipe: Recipe, environment: Mapping[str, str]) -> Recipe:
    """The recipe under the layout of this attempt, which may be smaller than it asks for."""
    if LAYOUT not in environment:
        return recipe
    replicate, shard = map(int, environment[LAYOUT].split())
    return with_overrides(recipe, {"parallel.replicate": replicate, "parallel.shard": shard})


def threads_each(size: int) -> int:
    """Threads of one worker of `size` on this machine: together no more than there are cores."""
    return max(1, usable_cores() // size)


def _world(size: int, address: str, sharing: int) -> dict[str, str]:
    """What torchrun would tell all ranks, but for the port; `sharing` of them share the cores."""
    if size == 1:
        return {}
    return {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": address,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads_each(sharing))),
    }


def _place(rank: int, local_rank: int, local_size: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(local_size)}


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a recipe says of nodes."""

    settings: SuperviseSection
    wanted: Layout
    """At full strength."""
    sequences: int
    """Of a step, in the stage that has most."""
    ledger: Path
    """The folder that keeps it."""


def node_plan(settings: Recipe, folder: RunFolder) -> NodePlan | None:
    """What a recipe says of nodes, if anything; RecipeError if so many slots cannot train it."""
    asked = settings.supervise
    if not asked.node:
        return None
    slots = sum(node.slots for node in asked.node if not node.spare)
    return NodePlan(
        settings=asked,
        wanted=layout_for(settings.parallel, slots),
        sequences=max(stage.sequences for stage in settings.batch_stages()),
        ledger=Path(asked.node_ledger) if asked.node_ledger else folder.path,
    )
