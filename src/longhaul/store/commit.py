"""The moves that make a folder a checkpoint, take it away, and tidy up after a dead owner.

While it is written a checkpoint is `.step-120.attempt-3.partial`; committed it is `step-120`.
An older `step-120`, written by an earlier attempt, is moved aside to
`.step-120.attempt-3.replaced` first and deleted afterwards.

Enters: a folder of checkpoints, a step, an attempt. Leaves: renamed and removed folders.
Never knows: what is in a checkpoint beyond its manifest, or which ones are worth keeping.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from longhaul.core.errors import NotOwner
from longhaul.core.files import fsync_folder

_COMMITTED = re.compile(r"step-(0|[1-9][0-9]*)")
_UNFINISHED = re.compile(r"\.(step-[0-9]+)\.attempt-([0-9]+)\.(partial|replaced)")
_REMOVED = re.compile(r"\.step-[0-9]+\.removed")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` is once it is committed."""
    return folder / f"step-{step}"


def partial_path(folder: Path, step: int, attempt: int) -> Path:
    """Where `attempt` writes the checkpoint of `step` before it is committed."""
    return folder / f".step-{step}.attempt-{attempt}.partial"


def step_of(path: Path) -> int | None:
    """The step of a committed checkpoint's folder; None for any other name."""
    match = _COMMITTED.fullmatch(path.name)
    return int(match[1]) if match else None


def commit(partial: Path, final: Path, still_owner: Callable[[], bool]) -> None:
    """Turn a partial folder that has its manifest into the checkpoint `final`.

    If `final` exists it stays whole until the new one is ready to take its name; should this
    process die between the two renames, `sweep` moves the old one back.

    Args:
        partial: as named by `partial_path`, its manifest written, everything fsynced.
        final: as named by `checkpoint_path`, in the same folder.
        still_owner: the fence: asked right before anything visible changes.

    Raises:
        NotOwner: the lease went to another attempt; `partial` is left to the caller.
        OSError: the medium refused; `final` is as it was.
    """
    replaced = partial.with_suffix(".replaced")
    if not still_owner():
        raise NotOwner(
            f"checkpoint {final.name} was not committed: another attempt owns this run now"
        )
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    try:
        partial.rename(final)
    except OSError:
        if replaced.exists():
            replaced.rename(final)
        raise
    fsync_folder(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete a checkpoint; one rename takes it out of the catalogue before any file goes.

    Raises:
        OSError: the medium refused; what is left is no longer a checkpoint, or still a whole one.
    """
    removed = path.with_name(f".{path.name}.removed")
    if removed.exists():
        shutil.rmtree(removed)
    path.rename(removed)
    fsync_folder(path.parent)
    shutil.rmtree(removed)


def sweep(folder: Path, current_attempt: int) -> list[str]:
    """Tidy up what dead attempts left in `folder`; what was done, in words.

    Partial folders of earlier attempts go. An old checkpoint that was moved aside goes if its
    replacement arrived, and is moved back if it did not. Names of `current_attempt` and later
    ones are left alone: somebody is at work there.

    Raises:
        OSError: the medium refused.
    """
    done: list[str] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _UNFINISHED.fullmatch(path.name)
        if _REMOVED.fullmatch(path.name):
            shutil.rmtree(path)
        elif match is None or int(match[2]) >= current_attempt:
            continue
        elif match[3] == "replaced" and not (folder / match[1]).exists():
            path.rename(folder / match[1])
            done.append(f"moved {match[1]} back: attempt {match[2]} ended before replacing it")
        else:
            shutil.rmtree(path)
            if match[3] == "partial":
                done.append(f"removed a partial {match[1]} of attempt {match[2]}")
    return done
