"""A run's folder: where everything about one run lies, as plain files.

A little disk space is set aside in it, so that a full disk can still be written about.
"""

import difflib
import errno
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.clocks import Clock
from longhaul.core.errors import UsageError
from longhaul.core.files import write_json
from longhaul.core.strict import DamagedFile, entries_of, read_object
from longhaul.core.units import Seconds

FORMAT = 1
"""Version of the layout and of every file format inside; a higher one is refused, not guessed."""


class _Part:
    """A path inside a run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", owner: type["RunFolder"]) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path
    identity = _Part("run.json")
    """Format version, name, time of creation."""
    recipe = _Part("recipe.toml")
    """The recipe as given."""
    run_spec = _Part("asked.json")
    """What the run was asked to do."""
    segments = _Part("segments")
    """One folder a segment."""
    journal = _Part("journal")
    """Append-only JSON lines."""
    compacted = _Part("journal/compacted")
    """Parquet copies of closed journal files; the JSON lines stay the authority."""
    reserve = _Part("journal/.reserve")
    """The space set aside."""
    requests = _Part("requests")
    """What the command line asks of the trainer."""
    refused_requests = _Part("requests/refused")
    """Requests that could not be honoured, each with its reason."""
    leases = _Part("lease")
    """One file an attempt: who trained."""
    checkpoints = _Part("checkpoints")
    """One folder a checkpoint."""
    incidents = _Part("incidents")
    """What is kept of single steps that went wrong, one folder a step."""
    workers = _Part("workers")
    """One log a worker process."""
    compiled = _Part("compiled")
    """What the compiler has generated, one folder a kind of machine and software."""
    trackers = _Part("trackers")
    """What mirrors of the run have written, and how far each has come."""

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.path.resolve().name

    @property
    def exists(self) -> bool:
        """A run has been created here."""
        return self.identity.is_file()


def create_run(path: Path, clock: Clock) -> RunFolder:
    """Make the folder of a new run, or leave one alone; UsageError if its format is newer."""
    folder = RunFolder(path)
    for part in (
        folder.segments, folder.journal, folder.requests, folder.leases,
        folder.checkpoints, folder.workers,
    ):  # fmt: skip
        part.mkdir(parents=True, exist_ok=True)
    if not folder.exists:
        created = clock.wall()
        write_json(folder.identity, {"format": FORMAT, "name": folder.name, "created": created})
    _check_format(folder)
    return folder


def open_run(path_or_name: str | Path, runs: Path = Path("runs")) -> RunFolder:
    """The existing run called `path_or_name` in `runs`, or at that path; UsageError if there is
    none, or its format is newer than ours.
    """
    for folder in (RunFolder(runs / path_or_name), RunFolder(Path(path_or_name))):
        if folder.exists:
            _check_format(folder)
            return folder
    name = str(path_or_name)
    existing = [folder.name for folder in list_runs(runs)]
    if (runs / name).is_dir() and name:
        message = f"{runs / name}: not a run's folder (it has no run.json)"
    else:
        message = f"run {name}: not found in {runs}/"
    if near := difflib.get_close_matches(name, existing, n=3, cutoff=0.5):
        raise UsageError(message, f"did you mean {' or '.join(near)}?")
    if existing:
        raise UsageError(message, f"existing runs: {', '.join(existing[:8])}")
    raise UsageError(message, "`longhaul train RECIPE` starts a run; --runs-dir looks elsewhere")


def created_of(folder: RunFolder) -> Seconds | None:
    """Unix time at which a run was made; None if there is none, or it does not say."""
    try:
        return float(read_object(folder.identity)["created"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def list_runs(runs: Path) -> list[RunFolder]:
    """Every run in `runs`, by name."""
    folders = (RunFolder(runs / name) for name in sorted(entries_of(runs)))
    return [folder for folder in folders if folder.exists]


def _check_format(folder: RunFolder) -> None:
    try:
        format_version = int(read_object(folder.identity)["format"])
    except DamagedFile:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{folder.identity}: damaged ({error})",
            f'write {{"format": {FORMAT}}} into it if the rest of the folder is intact',
        ) from error
    if format_version > FORMAT:
        raise UsageError(
            f"{folder.path}: format {format_version}, written by a newer longhaul; "
            f"this one reads up to {FORMAT}",
            "upgrade longhaul",
        )


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a medium that takes no more, for want of space or by a quota."""
RESERVE_BYTES = 4 << 20
_LEAST_FREE_BYTES = 4 * RESERVE_BYTES
"""Free space that must be there before space is set aside: the last of it is others' to use."""


def why_paused(checkpoints: Path, saved: int | None) -> str:
    """What a run says while it waits for space; `saved` is the step of its newest checkpoint."""
    newest = "none" if saved is None else f"step {saved}"
    return (
        f"the disk of {checkpoints} is full and nothing on it can be done without; the newest "
        f"checkpoint is {newest}"
    )


class Reserve:
    """The file that holds the space. Every method may fail quietly: it is only a precaution."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def release(self) -> bool:
        """Give the space back to the file system; False if none was held."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    def refill(self) -> None:
        """Set the space aside unless it is, or unless the disk is nearly full."""
        try:
            if self._path.exists() or shutil.disk_usage(self._path.parent).free < _LEAST_FREE_BYTES:
                return
            with self._path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
                else:
                    file.write(bytes(RESERVE_BYTES))
        except OSError:
            self.release()
