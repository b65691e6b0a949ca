"""Which checkpoints may go: never the one a run would need next.

On a full disk more give way, because a new checkpoint is worth more than the old ones: but never so
much that a failure in the next second would leave nothing to go on from.
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

    Kept are the newest `keep_last`, those at multiples of `keep_every` steps (0: none), the newest
    verified one (good ones were verified too) and the newest good one. Going back to a snapshot in
    memory poisons every checkpoint beyond it, and a snapshot dies with the process: so the newest
    verified one that is not younger than the oldest snapshot is kept too, or else the oldest of all
    verified (`may_begin_anew` for a rollback behind that one). Poisoned or damaged ones go, unless
    nothing else is left: then the newest stays, as throwing the last one away is for a person to
    decide. A step without a health counts as committed.
    """
    ordered, sound, verified, good = _by_health(checkpoints, health)
    kept = [*sound[-max(keep_last, 1) :], *verified[-1:], *good[-1:]]
    if oldest_snapshot is not None:
        old = [c for c in verified if c.step <= oldest_snapshot]
        kept += old[-1:] or verified[:1]
    if keep_every:
        kept += [c for c in sound if c.step % keep_every == 0]
    if not sound:
        kept += ordered[-1:]
    steps = {c.step for c in kept}
    return [c for c in ordered if c.step not in steps]


def _by_health(
    checkpoints: Sequence[Checkpoint], health: Mapping[int, Health]
) -> tuple[list[Checkpoint], ...]:
    """All by step, and of these the sound ones, the verified ones and the good ones."""
    ordered = sorted(checkpoints, key=lambda checkpoint: checkpoint.step)
    sound = [c for c in ordered if health.get(c.step) != "poisoned" and not c.damage]
    verified = [c for c in sound if health.get(c.step) in ("verified", "good")]
    good = [c for c in sound if health.get(c.step) == "good"]
    return ordered, sound, verified, good


def superseded(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those beside a newer one of the same step, as a tier can hold that overwrites nothing.

    A run that went back and came again to a step has made another state of it; the older one
    belongs to a stretch that was left. All are readable.
    """
    newest = {c.step: c for c in sorted(checkpoints, key=lambda checkpoint: checkpoint.time)}
    return [checkpoint for checkpoint in checkpoints if newest[checkpoint.step] is not checkpoint]


def may_begin_anew(recorded: Mapping[int, CheckpointHealth], gone_back_to: int | None) -> bool:
    """Whether the beginning is what is left of a run, all of whose checkpoints are poisoned.

    It is if the last rollback, to step `gone_back_to`, went behind the first checkpoint that the
    ledger ever knew: what is lost is no more than the steps to there. It is not where a sound
    checkpoint must once have been nearer: somebody removed it, or its bytes went bad, and a person
    must look.
    """
    return gone_back_to is not None and not any(
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
    read back there, by the hashes of their manifests. The newest verified one and the newest good
    one go only if a tier holds them.
    """
    ordered, sound, verified, good = _by_health(checkpoints, health)
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
