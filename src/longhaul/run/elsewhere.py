"""The model of a run that lies in a store, loaded on a machine that has nothing of the run."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from longhaul.checkpoint.loader import read_facts
from longhaul.core.errors import DataError, UsageError
from longhaul.core.output import Say
from longhaul.core.strict import entries_of
from longhaul.core.units import Bytes
from longhaul.data.dataset import MANIFEST, Dataset, open_dataset
from longhaul.data.prepare import prepare
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import by_opening, read_segments
from longhaul.run.trained import Trained, load_trained
from longhaul.store.catalogue import Checkpoint
from longhaul.store.part import bring_part
from longhaul.store.remote_run import RemoteRun

_SCRATCH = ".fetched"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model from a store."""

    trained: Trained
    attempt: int
    """That saved its checkpoint."""
    size_bytes: Bytes
    """Of the tensors that were fetched."""


def text_here(remote: RemoteRun, prepared: Path, say: Say) -> Dataset:
    """The text of a run in a store: found in the folder `prepared`, whatever it is called there, or
    prepared in it. UsageError if it cannot be had here, or is not what the run was trained on.
    """
    folder = remote.folder
    data = [opening.fingerprint.get("data") or {} for opening in by_opening(read_segments(folder))]
    wanted = data[-1].get("identity") if data else None
    for name in sorted(entries_of(prepared)):
        if (prepared / name / MANIFEST).is_file():
            with suppress(DataError, OSError):
                found = open_dataset(prepared / name)
                if found.identity == wanted:
                    return found
    way = "bring its sources here, or the prepared folder of its machine into --prepared-dir"
    try:
        made = prepare(read_run_spec(folder).settings(), prepared, say)
    except DataError as error:
        raise UsageError(
            f"run {folder.name} cannot be judged without its text, which is not here: "
            f"{error.message}",
            way,
        ) from error
    if wanted is not None and made.identity != wanted:
        raise UsageError(
            f"run {folder.name} was trained on text {wanted[:12]}; its sources give "
            f"{made.identity[:12]} here",
            way,
        )
    return made


@contextmanager
def fetched_model(
    remote: RemoteRun,
    checkpoint: Checkpoint,
    dataset: Dataset,
    say: Say,
    device: str | None = None,
    by_layer: bool | None = None,
) -> Iterator[Fetched]:
    """Fetch and load the model of a checkpoint that the store lists, and nothing else of it. Its
    files are there for the body; `device` and `by_layer` as of `load_trained`.

    Raises:
        StoreError: the store does not answer, or gives other bytes.
        RefusedCheckpoint, StateMismatch, UsageError: as of `load_trained`.
    """
    (remote.folder.path / _SCRATCH).mkdir(parents=True, exist_ok=True)
    # Each reader has its own: another one may be at work on the same checkpoint.
    name = mkdtemp(prefix=f"step-{checkpoint.step}-", dir=remote.folder.path / _SCRATCH)
    scratch = Path(name) / f"step-{checkpoint.step}"
    try:
        manifest, size_bytes = bring_part(checkpoint, remote.tier, scratch, "model.", say)
        trained = load_trained(
            remote.folder, checkpoint, scratch, dataset, manifest, device, by_layer
        )
        yield Fetched(trained, read_facts(scratch).attempt, size_bytes)
    finally:
        shutil.rmtree(name, ignore_errors=True)
        with suppress(OSError):
            scratch.parent.parent.rmdir()
