"""Which checkpoints give way when the disk is full (incident S3).

More than retention would let go of, because a new checkpoint is worth more than the old ones: but
never so much that a failure in the next second would leave nothing to go on from.

Enters: the checkpoints here, their health, what other tiers hold, bytes needed. Leaves: those to
remove, oldest first. Never knows: disks, or how anything is removed.
"""

from collections.abc import Collection, Mapping, Sequence

from longhaul.core.units import Bytes
from longhaul.logbook.ledger import Health
from longhaul.store.catalogue import Checkpoint


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
