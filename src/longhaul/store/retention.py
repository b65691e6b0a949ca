"""Which checkpoints may go: never the one a run would need next.

Going back to a snapshot in memory poisons every checkpoint beyond it, and a snapshot dies with the
process. So a sound checkpoint that is not younger than the oldest snapshot stays: whatever is gone
back to, something lies on disk that is not beyond it. Where no checkpoint is as old as that, the
run has snapshots from its very beginning, or from before its first checkpoint, which stays then; a
rollback behind that one leaves the beginning to go on from (`may_begin_anew`).

On a full disk more give way than that, because a new checkpoint is worth more than the old ones:
but never so much that a failure in the next second would leave nothing to go on from (S3).
"""

from collections.abc import Collection, Mapping, Sequence

from longhaul.core.units import Bytes
from longhaul.logbook.ledger import CheckpointHealth, Health
from longhaul.store.catalogue import Checkpoint


def to_remove(
    checkpoints: Sequence[Checkpoint],
    health: Mapping[int, Health],
    *,
    keep_last: int,
    keep_every: int,
    oldest_snapshot: int | None = None,
) -> list[Checkpoint]:
    """The checkpoints to remove, oldest first.

    Kept are the newest `keep_last`, those at multiples of `keep_every` steps, the newest
    verified one (good ones were verified too), the newest good one, and the newest verified one
    that is not younger than the oldest snapshot, or else the oldest of all verified. Poisoned
    or damaged ones count as none of these and go, unless nothing else is left: then the newest
    stays, because throwing the last one away is for a person to decide.

    Args:
        checkpoints: in any order.
        health: step → health; a step that is absent counts as committed.
        keep_last: how many of the newest to keep, at least 1.
        keep_every: a number of steps; 0 keeps none for this reason.
        oldest_snapshot: step of the oldest state in memory; None if there is none.
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
    if oldest_snapshot is not None:
        old = [step for step in verified if step <= oldest_snapshot]
        kept.update(old[-1:] or verified[:1])
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


def may_begin_anew(recorded: Mapping[int, CheckpointHealth], gone_back_to: int | None) -> bool:
    """Whether the beginning is what is left of a run, all of whose checkpoints are poisoned.

    It is if the last rollback went behind the first checkpoint there ever was: what is lost is no
    more than the steps to there. It is not where a sound checkpoint must once have been nearer:
    somebody removed it, or its bytes went bad, and a person must look.

    Args:
        recorded: step → health of every checkpoint the ledger ever knew, removed ones included.
        gone_back_to: step that the last rollback went to; None if there was none.
    """
    if gone_back_to is None:
        return False
    return not any(
        known.health != "poisoned" and step <= gone_back_to for step, known in recorded.items()
    )


def to_make_room(
    checkpoints: Sequence[Checkpoint],
    health: Mapping[int, Health],
    held_elsewhere: Collection[str],
    needed: Bytes,
) -> list[Checkpoint]:
    """The checkpoints whose removal frees at least `needed` bytes; none if that cannot be.

    First those that nobody would go back to, then older ones, then those that another tier holds,
    read back there. The newest verified one and the newest good one go only if a tier holds them.

    Args:
        checkpoints: in the run's own folder, in any order.
        health: step → health; a step that is absent counts as committed.
        held_elsewhere: hashes of the manifests that other tiers hold.
        needed: bytes beyond those that are free.
    """
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    sound = [c for c in ordered if health.get(c.step) != "poisoned" and not c.damage]
    verified = [c for c in sound if health.get(c.step) in ("verified", "good")]
    good = [c for c in sound if health.get(c.step) == "good"]
    # What was committed and not yet read back is nobody's safety, but it may be being read back.
    needed_here = [*sound[-1:], *verified[-1:], *good[-1:]]
    unsound = [c for c in ordered if c not in sound] if sound else []
    older = [c for c in sound if c not in needed_here]
    safe = [c for c in sound if c in needed_here and c.manifest_sha256 in held_elsewhere]
    gone: list[Checkpoint] = []
    for checkpoint in (*unsound, *older, *safe):
        if sum(c.size_bytes for c in gone) >= needed:
            break
        gone.append(checkpoint)
    return gone if gone and sum(c.size_bytes for c in gone) >= needed else []
