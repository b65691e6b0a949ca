"""One checkpoint written, committed and read back, in order. Several ranks go this way together:
each writes its own chunks, rank 0 all the rest, and the reading back is dealt out.
"""

import errno
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from longhaul.checkpoint.capture import whole_shape
from longhaul.checkpoint.storage import save_tensors
from longhaul.core.clocks import Clock
from longhaul.core.errors import NotOwner
from longhaul.core.faults import Point, point
from longhaul.core.files import fsync_folder
from longhaul.core.pieces import Pieces
from longhaul.core.units import Bytes
from longhaul.logbook.folder import RESERVE_BYTES
from longhaul.parallel.control import Control, all_do, first_does
from longhaul.store.catalogue import checkpoint_path, commit, partial_path
from longhaul.store.manifest import (
    FACTS_NAME,
    Manifest,
    render_json,
    verify,
    write_listed_file,
    write_manifest,
)

Stage = Literal["written", "committed", "verified"]
FACTS_VERSION = 1

_DESCRIPTION_BYTES_PER_TENSOR: Bytes = 1024
"""More than a tensor's entry in the header and in metadata.json takes."""


def render_facts(step: int, attempt: int, facts: Mapping[str, Any]) -> bytes:
    """The content of `state.json`; a ValueError or TypeError if a fact is no finite JSON value."""
    body = {"format_version": FACTS_VERSION, "step": step, "attempt": attempt, "facts": dict(facts)}
    return render_json(body)


def needed_bytes(
    tensors: Mapping[str, Tensor], facts: bytes, pieces: Mapping[str, Pieces] | None = None
) -> Bytes:
    """Room that a checkpoint takes at most."""
    cut = pieces or {}
    data = sum(
        math.prod(whole_shape(tensor, cut.get(name))) * tensor.element_size()
        for name, tensor in tensors.items()
    )
    return data + len(facts) + _DESCRIPTION_BYTES_PER_TENSOR * (len(tensors) + 4)


def write_checkpoint(
    folder: Path,
    *,
    step: int,
    attempt: int,
    tensors: Mapping[str, Tensor],
    facts: bytes,
    still_owner: Callable[[], bool],
    clock: Clock,
    pieces: Mapping[str, Pieces] | None = None,
    control: Control | None = None,
) -> Iterator[tuple[Stage, Manifest, str]]:
    """Write the checkpoint of `step` into `folder`; a generator, to be run to its end.

    Yields:
        (stage, manifest, SHA-256 of the manifest's bytes) as each stage is reached; the hash is ""
        while there is no manifest.

    Raises:
        OSError: the medium refused, such as a full disk, on whichever rank. Nothing of this
            checkpoint is left, and an older one of the same step is as it was.
        NotOwner: the lease went to another attempt; nothing is left either.
        RefusedCheckpoint: it was committed, but the medium gives back other bytes.
    """
    partial, final = partial_path(folder, step, attempt), checkpoint_path(folder, step)

    def begin() -> None:
        if not still_owner():  # or it would be made anew where somebody has removed the run
            raise NotOwner(f"checkpoint {final.name} was not begun: the run is not this attempt's")
        folder.mkdir(exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        _require_room(folder, needed_bytes(tensors, facts, pieces))
        partial.mkdir()

    def complete() -> Manifest:
        files = (*entries, write_listed_file(partial / FACTS_NAME, [facts]))
        fsync_folder(partial)
        return Manifest(step=step, time=clock.wall(), files=files)

    def seal() -> str:
        sha256 = write_manifest(partial, manifest)
        commit(partial, final, still_owner)
        return sha256

    first_does(control, begin)  # whatever it raises, there is nothing of ours to remove
    try:
        entries = save_tensors(partial, tensors, pieces, control)
        point(Point.FILES_WRITTEN, entries, folder=partial)
        manifest = first_does(control, complete)
        yield "written", manifest, ""
        sha256 = first_does(control, seal)
    except BaseException:
        if control is None or control.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    yield "committed", manifest, sha256
    read_back(final, control, past_page_cache=True)
    yield "verified", manifest, sha256


def read_back(path: Path, control: Control | None, past_page_cache: bool = False) -> Manifest:
    """Compare every byte of a checkpoint with its manifest, each rank its share of the files; a
    `RefusedCheckpoint` on all ranks if any finds a file that differs.
    """
    share = (0, 1) if control is None else (control.rank, control.size)
    read: list[Manifest] = []  # as every rank has read it: it need not come from the others
    all_do(control, lambda: read.append(verify(path, past_page_cache, share)))
    return read[0]


def _require_room(folder: Path, needed: Bytes) -> None:
    """Refuse what cannot fit, rather than fill a disk that others write to as well."""
    disk = shutil.disk_usage(folder)
    # Some network file systems do not know their size and say 0.
    # The last of it is the journal's: on a full disk a decision can be written, a checkpoint not.
    if disk.total and disk.free < needed + RESERVE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
