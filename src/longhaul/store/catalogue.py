"""Which checkpoints a folder holds, their health, and the moves that make a folder one.

While it is written a checkpoint is `.step-120.attempt-3.partial`; committed it is `step-120`.
An older `step-120`, written by an earlier attempt, is moved aside to
`.step-120.attempt-3.replaced` first and deleted afterwards.
"""

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.errors import NotOwner
from longhaul.core.files import fsync_folder
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.ledger import CheckpointHealth, Health
from longhaul.store.manifest import MANIFEST_NAME, Manifest, RefusedCheckpoint, read_manifest

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
    """Turn a partial folder, fsynced with its manifest, into the checkpoint `final` beside it.

    If `final` exists it stays whole until the new one is ready to take its name; should this
    process die between the two renames, `sweep` moves the old one back.

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
    """Delete a checkpoint; one rename takes it out of the catalogue before any file goes."""
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
    ones stay: somebody is at work there.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint: a folder with a manifest."""

    step: int
    path: Path
    manifest_sha256: str
    """Tells this checkpoint from another one that was written at the same step."""
    time: Seconds
    size_bytes: Bytes
    damage: str = ""
    """Why the manifest is not trusted; then the fields above are empty. Loading it is refused
    with the same words, so it stays listed: what is passed over must be reported."""

    @classmethod
    def of(cls, manifest: Manifest, sha256: str, path: Path) -> "Checkpoint":
        """The checkpoint in `path`, whose manifest has this hash."""
        return cls(
            step=manifest.step, path=path, manifest_sha256=sha256, time=manifest.time,
            size_bytes=manifest.size_bytes,
        )  # fmt: skip


def catalogue(folder: Path) -> list[Checkpoint]:
    """The committed checkpoints in `folder`, lowest step first; none if there is no folder."""
    if not folder.is_dir():
        return []
    found = []
    for path in folder.iterdir():
        step = step_of(path)
        if step is not None and (path / MANIFEST_NAME).exists():
            found.append(_entry(step, path))
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def usable(folder: Path, recorded: Mapping[int, CheckpointHealth]) -> list[Checkpoint]:
    """The checkpoints in `folder` that are neither damaged nor poisoned, lowest step first."""
    return usable_of(catalogue(folder), recorded)


def usable_of(
    there: Sequence[Checkpoint], recorded: Mapping[int, CheckpointHealth]
) -> list[Checkpoint]:
    """Those of some checkpoints that are neither damaged nor poisoned, in their order."""
    return [c for c in there if not c.damage and health_of(c, recorded) != "poisoned"]


def newest_usable(
    checkpoints: Sequence[Checkpoint], recorded: Mapping[int, CheckpointHealth]
) -> Iterator[Checkpoint]:
    """Checkpoints to try after a crash, best first: the newest that is not poisoned, and so on.

    One that was committed but not yet verified is as good as a verified one here, because loading
    reads and compares every byte.
    """
    for checkpoint in sorted(checkpoints, key=lambda item: item.step, reverse=True):
        if health_of(checkpoint, recorded) != "poisoned":
            yield checkpoint


def _entry(step: int, path: Path) -> Checkpoint:
    try:
        manifest, sha256 = read_manifest(path)
        if manifest.step != step:
            raise RefusedCheckpoint(f"{path}: its manifest is that of step {manifest.step}")
    except RefusedCheckpoint as refusal:
        return Checkpoint(
            step=step, path=path, manifest_sha256="", time=0.0, size_bytes=0, damage=str(refusal)
        )
    return Checkpoint.of(manifest, sha256, path)


_UNRECORDED = CheckpointHealth("committed", "")


def health_of(checkpoint: Checkpoint, recorded: Mapping[int, CheckpointHealth]) -> Health:
    """The health of one checkpoint, wherever it lies.

    A record of the ledger counts only for the very checkpoint it was made for: one that a later
    attempt wrote anew at the same step starts over as committed, and so does one whose record was
    lost. One that was poisoned stays so, whatever was saved at its step since.
    """
    known = recorded.get(checkpoint.step, _UNRECORDED)
    word = known.of(checkpoint.manifest_sha256)
    return "committed" if word == "written" else word  # it has its manifest, so it is


def health_now(
    checkpoints: Sequence[Checkpoint], recorded: Mapping[int, CheckpointHealth]
) -> dict[int, Health]:
    """Step → health of the checkpoints that are there, one a step (`health_of`)."""
    return {checkpoint.step: health_of(checkpoint, recorded) for checkpoint in checkpoints}


ASIDE = "not-of-this-run"
"""Folder in `checkpoints/`; nothing in it is chosen, counted or removed."""


def unknown(
    there: Sequence[Checkpoint], manifests: Collection[str], begun: bool, created: Seconds | None
) -> list[Checkpoint]:
    """Checkpoints of which the journal knows nothing: the ledger names none of their `manifests`.

    A process that dies between a commit and the next record leaves one that no record names. It is
    the run's all the same if the journal has begun, and it was written since the run was created,
    at a Unix time that may not be known.
    """
    # A damaged one has no time; it is refused with its reason when its turn comes.
    return [
        c
        for c in there
        if c.manifest_sha256 not in manifests
        and not (begun and (c.damage or created is None or c.time >= created))
    ]


def set_aside(checkpoints: Sequence[Checkpoint]) -> Path:
    """Move checkpoints of one folder out of its catalogue; where they are now."""
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
