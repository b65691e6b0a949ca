"""What can be watched of the ranks of a layout, and what cannot, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longhaul.parallel.layout import Layout


@dataclass(frozen=True, slots=True)
class Look:
    """One kind of look at the ranks."""

    what: Literal["stragglers", "weights", "numbers"]
    """`weights`: hashes of what several ranks hold alike. `numbers`: what all compute from the
    same micro-batch."""
    watched: bool
    how: str
    """How, or why not."""


def looks(
    layout: Layout,
    nodes: Sequence[str],
    hash_every: int,
    witness_every: int,
    device: str,
    held_alike: float,
) -> tuple[Look, ...]:
    """What is watched, each kind once.

    Args:
        layout: of all ranks.
        nodes: name of each rank's.
        hash_every: steps between looks at the weights; 0: none.
        witness_every: steps between looks at the numbers; 0: none.
        device: type of the ranks' devices.
        held_alike: share of the weights of which several ranks have the same.
    """
    return (
        _stragglers(layout, device),
        _weights(layout, hash_every, held_alike),
        _numbers(layout, nodes, witness_every),
    )


def in_words(found: Sequence[Look]) -> str:
    """One line for people."""
    words = {"stragglers": "slow ranks", "weights": "wrong weights", "numbers": "wrong numbers"}
    watched = [f"{words[look.what]} ({look.how})" for look in found if look.watched]
    missing = [f"{words[look.what]} ({look.how})" for look in found if not look.watched]
    parts = [f"watched for {', '.join(watched)}"] if watched else []
    parts += [f"not watched for {', '.join(missing)}"] if missing else []
    return f"ranks are {'; '.join(parts)}"


def _stragglers(layout: Layout, device: str) -> Look:
    peers = layout.data_size * layout.tensor
    if peers == 1:
        return Look("stragglers", False, "each stage of the pipeline is one rank, without a peer")
    if device != "cpu" and layout.data_size == 1:
        reason = "the ranks of a tensor-parallel layer wait for each other within it"
        return Look("stragglers", False, reason)
    of = " of a stage" if layout.pipeline > 1 else ""
    return Look("stragglers", True, f"among the {peers} ranks{of}")


def _weights(layout: Layout, every: int, held_alike: float) -> Look:
    if every == 0:
        return Look("weights", False, "monitor.hash_every=0")
    if held_alike == 0:
        return Look("weights", False, "every weight is held by one rank alone")
    if layout.replicate > 1:
        held = f"all, among {layout.replicate} replicas"
    else:
        held = f"{held_alike:.2%} of them: the rest is held by one rank alone"
    return Look("weights", True, f"{held}, every {every} steps")


def _numbers(layout: Layout, nodes: Sequence[str], every: int) -> Look:
    if every == 0:
        return Look("numbers", False, "monitor.witness_every=0")
    if layout.data_size == 1:
        return Look("numbers", False, "no other data rank could compute the same")
    told = f"among {layout.data_size} data ranks, every {every} steps"
    if layout.data_size == 2:
        told += "; of two that differ nobody can tell which is wrong"
    elif len(set(nodes)) == 1:
        told += "; one node alone has no witness against it"
    return Look("numbers", True, told)
