"""Going on with fewer nodes: fewer replicas, the same global batch (incident M10).

Enters: the layout a run had, how many processes there are now. Leaves: the layout to go on with,
or why there is none. Never knows: nodes, or how a layout is set up.
"""

import math
from dataclasses import dataclass

from longhaul.parallel.layout import Layout


@dataclass(frozen=True, slots=True)
class Capacity:
    """What can be made of the processes there are."""

    layout: Layout | None
    """None: too few for any; wait for a node."""
    nodes: int
    """That the layout takes; others are spares."""
    reason: str


def fit(
    wanted: Layout, nodes: int, per_node: int, sequences: int, least_shard: int = 1
) -> Capacity:
    """The largest layout that so many nodes carry, with the same mathematics.

    Tensor and pipeline ways are kept, because each rank's part of a layer is laid out for them;
    sharding is kept as long as there are enough processes for it, because memory depends on it.
    Replicas that would not make a step shorter are left out: with 8 sequences, 5 replicas take as
    long as 4.

    Args:
        wanted: the layout at full strength.
        nodes: that can be used.
        per_node: processes on each.
        sequences: of the global batch, which stays.
        least_shard: ways of sharding below which the state does not fit a device's memory.
    """
    processes = nodes * per_node
    inner = wanted.tensor * wanted.pipeline
    if processes >= wanted.size:
        return Capacity(wanted, math.ceil(wanted.size / per_node), "every node that is needed")
    replicas = processes // (inner * wanted.shard)
    if replicas:
        layout = Layout(_useful(replicas, wanted.shard, sequences), wanted.shard,
                        wanted.tensor, wanted.pipeline)  # fmt: skip
        said = f"{layout.replicate} of {wanted.replicate} replicas"
    else:
        shard = processes // inner
        if shard < max(1, least_shard):
            least = inner * max(1, least_shard)
            return Capacity(
                None, 0, f"{processes} processes are fewer than the {least} that the model needs"
            )
        shard = max(_useful(shard, 1, sequences), least_shard)
        layout = Layout(1, shard, wanted.tensor, wanted.pipeline)
        said = (
            f"one replica in {shard} instead of {wanted.shard} shards: each process holds "
            f"{wanted.shard / shard:.2g} times as much"
        )
    used = math.ceil(layout.size / per_node)
    before = math.ceil(sequences / wanted.data_size)
    slower = math.ceil(sequences / layout.data_size) / before
    reason = (
        f"{nodes} nodes for {math.ceil(wanted.size / per_node)}: {said}, the same {sequences} "
        f"sequences a step, each step about {slower:.2g} times as long"
    )
    return Capacity(layout, used, reason)


def _useful(ways: int, of_each: int, sequences: int) -> int:
    """The fewest of up to `ways` ways with which a step is as short as with all of them."""
    rounds = math.ceil(sequences / (ways * of_each))
    return next(n for n in range(1, ways + 1) if math.ceil(sequences / (n * of_each)) <= rounds)
