"""Which checkpoints may go: never the one a run would need next.

Enters: the catalogue, the health of each, and how many to keep. Leaves: those to remove.
Never knows: how they are removed (`commit.remove`) or when.
"""

from collections.abc import Mapping, Sequence

from longhaul.logbook.ledger import Health
from longhaul.store.catalogue import Checkpoint


def to_remove(
    checkpoints: Sequence[Checkpoint],
    health: Mapping[int, Health],
    *,
    keep_last: int,
    keep_every: int,
) -> list[Checkpoint]:
    """The checkpoints to remove, oldest first.

    Kept are the newest `keep_last`, those at multiples of `keep_every` steps, the newest
    verified one (good ones were verified too) and the newest good one. Poisoned or damaged ones
    count as none of these and go, unless nothing else is left: then the newest stays, because
    throwing the last one away is for a person to decide.

    Args:
        checkpoints: in any order.
        health: step → health; a step that is absent counts as committed.
        keep_last: how many of the newest to keep, at least 1.
        keep_every: a number of steps; 0 keeps none for this reason.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    sound = [
        checkpoint.step
        for checkpoint in ordered
        if health.get(checkpoint.step) != "poisoned" and not checkpoint.damage
    ]
    verified = [step for step in sound if health.get(step) in ("verified", "good")]
    good = [step for step in sound if health.get(step) == "good"]
    kept = {*sound[-max(keep_last, 1) :], *verified[-1:], *good[-1:]}
    if keep_every:
        kept.update(step for step in sound if step % keep_every == 0)
    if not sound:
        kept.update(checkpoint.step for checkpoint in ordered[-1:])
    return [checkpoint for checkpoint in ordered if checkpoint.step not in kept]


def superseded(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those beside a newer one of the same step, as a tier can hold that overwrites nothing.

    A run that went back and came again to a step has made another state of it; the older one
    belongs to a stretch that was left.

    Args:
        checkpoints: in any order, all readable.
    """
    newest: dict[int, Checkpoint] = {}
    for checkpoint in sorted(checkpoints, key=lambda item: item.time):
        newest[checkpoint.step] = checkpoint
    return [checkpoint for checkpoint in checkpoints if newest[checkpoint.step] is not checkpoint]
