"""Which checkpoints a folder holds, and in which order to try them.

Enters: a folder; the health of its checkpoints from the ledger. Leaves: frozen `Checkpoint`
entries. Never knows: whether their bytes are sound (`manifest.verify` reads them).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.units import Bytes, Seconds
from longhaul.store.commit import step_of
from longhaul.store.manifest import MANIFEST_NAME, read_manifest
from longhaul.store.strict import RefusedCheckpoint


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
    with the same words, so it stays listed: what is passed over must be said."""


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


def newest_usable(
    checkpoints: Sequence[Checkpoint], health: Mapping[int, str]
) -> Iterator[Checkpoint]:
    """Checkpoints to try after a crash, best first: the newest that is not poisoned, and so on.

    One that was committed but not yet verified is as good as a verified one here, because
    loading reads and compares every byte.

    Args:
        checkpoints: in any order.
        health: step → health word (`logbook.ledger`); a step that is absent counts as committed.
    """
    for checkpoint in sorted(checkpoints, key=lambda item: item.step, reverse=True):
        if health.get(checkpoint.step) != "poisoned":
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
    return Checkpoint(
        step=step,
        path=path,
        manifest_sha256=sha256,
        time=manifest.time,
        size_bytes=manifest.size_bytes,
    )
