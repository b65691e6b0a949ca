"""Checkpoints that lie in a run's folder and are not that run's.

A run that is begun where another one was deleted, or cleared away by half, must not go on from what
the other has left.

Enters: the catalogue, what the run's journal knows. Leaves: those that it cannot know, moved aside.
Never knows: what is in a checkpoint, or how it came there.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from longhaul.core.files import fsync_folder
from longhaul.core.units import Seconds
from longhaul.store.catalogue import Checkpoint

ASIDE = "not-of-this-run"
"""Folder in `checkpoints/`; nothing in it is chosen, counted or removed."""


def unknown(
    there: Sequence[Checkpoint], manifests: Collection[str], begun: bool, created: Seconds | None
) -> list[Checkpoint]:
    """Checkpoints of which the journal knows nothing.

    A process that dies between a commit and the next record leaves a checkpoint that no record
    names. It is the run's all the same if it was written since the run was created.

    Args:
        there: the catalogue.
        manifests: hashes that the ledger names.
        begun: the journal has records of an earlier attempt.
        created: Unix time at which the run was created; None if that is not known.
    """

    def is_known(checkpoint: Checkpoint) -> bool:
        if checkpoint.manifest_sha256 in manifests:
            return True
        if not begun:
            return False
        # A damaged one tells no time; it is refused with its reason when its turn comes.
        return bool(checkpoint.damage) or created is None or checkpoint.time >= created

    return [checkpoint for checkpoint in there if not is_known(checkpoint)]


def set_aside(checkpoints: Sequence[Checkpoint]) -> Path:
    """Move checkpoints of one folder out of its catalogue; where they are now.

    Raises:
        OSError: the medium refused.
    """
    folder = checkpoints[0].path.parent
    aside = folder / ASIDE
    aside.mkdir(exist_ok=True)
    for checkpoint in checkpoints:
        target, number = aside / checkpoint.path.name, 2
        while target.exists():
            target, number = aside / f"{checkpoint.path.name}-{number}", number + 1
        checkpoint.path.rename(target)
    fsync_folder(folder)
    return aside
