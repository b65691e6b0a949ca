"""A checkpoint brought back from another tier, to lie where the run's own ones lie.

While it comes it is `.step-120.1a2b3c4d5e6f.download`, named by its manifest's hash, so that an
attempt that is cut off is gone on with by the next one, whoever makes it.

Enters: what both tiers hold. Leaves: the order in which to try them; a committed folder.
Never knows: what is in a checkpoint, or what is done with it.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longhaul.logbook.ledger import CheckpointHealth
from longhaul.store.catalogue import Checkpoint
from longhaul.store.commit import checkpoint_path, commit, partial_path
from longhaul.store.health import health_of
from longhaul.store.manifest import verify
from longhaul.store.remote import RemoteTier

_SUFFIX = ".download"


@dataclass(frozen=True, slots=True)
class Copy:
    """One checkpoint, and where it lies."""

    checkpoint: Checkpoint
    tier: RemoteTier | None
    """None: in the run's own folder."""


def newest_of_all(
    local: Sequence[Checkpoint],
    remote: Iterable[tuple[RemoteTier, Sequence[Checkpoint]]],
    recorded: Mapping[int, CheckpointHealth],
) -> Iterator[Copy]:
    """Copies to try after a crash, best first: by step, those here before those elsewhere.

    Args:
        local: of the run's own folder.
        remote: per tier what it holds; the first tier's copy is tried first.
        recorded: healths from the ledger. Tiers may hold different checkpoints of one step, so
            each is judged by its own manifest.
    """
    copies = [Copy(checkpoint, None) for checkpoint in local]
    for tier, there in remote:
        # Of several at one step the last one made is of the line that the run is on.
        copies += [Copy(c, tier) for c in sorted(there, key=lambda c: c.time, reverse=True)]
    for copy in sorted(copies, key=lambda copy: copy.checkpoint.step, reverse=True):
        if health_of(copy.checkpoint, recorded) != "poisoned":
            yield copy


def bring_here(
    checkpoint: Checkpoint,
    tier: RemoteTier,
    folder: Path,
    attempt: int,
    still_owner: Callable[[], bool],
    say: Callable[[str], None],
) -> Path:
    """Fetch a checkpoint into `folder`, verified and committed; its path.

    Args:
        checkpoint: as the tier lists it.
        tier: where it lies.
        folder: the run's `checkpoints/`.
        attempt: of the lease.
        still_owner: the fence.
        say: is told what is tried again.

    Raises:
        StoreError: the store refused, hung, or gives other bytes; what has come so far stays.
        RefusedCheckpoint: the local medium gives back other bytes.
        OSError: the local medium refused.
        NotOwner: the lease went to another attempt.
    """
    step, sha256 = checkpoint.step, checkpoint.manifest_sha256
    coming = folder / f".step-{step}.{sha256[:12]}{_SUFFIX}"
    folder.mkdir(exist_ok=True)
    tier.fetch(checkpoint, coming, say)
    verify(coming, past_page_cache=True)
    partial = partial_path(folder, step, attempt)
    shutil.rmtree(partial, ignore_errors=True)
    coming.rename(partial)
    final = checkpoint_path(folder, step)
    commit(partial, final, still_owner)
    return final


def forget_downloads(folder: Path) -> None:
    """Remove what was fetched in part and is not needed any more."""
    for path in folder.glob(f".step-*{_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)
