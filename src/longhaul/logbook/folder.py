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


@dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name: that of its folder."""
        return self.path.resolve().name

    @property
    def identity(self) -> Path:
        """`run.json`: format version, name, time of creation."""
        return self.path / "run.json"

    @property
    def recipe(self) -> Path:
        """The recipe as given."""
        return self.path / "recipe.toml"

    @property
    def segments(self) -> Path:
        """One folder a segment."""
        return self.path / "segments"

    @property
    def journal(self) -> Path:
        """Append-only JSON lines."""
        return self.path / "journal"

    @property
    def compacted(self) -> Path:
        """Parquet copies of closed journal files; the JSON lines stay the authority."""
        return self.journal / "compacted"

    @property
    def requests(self) -> Path:
        """What the command line asks of the trainer."""
        return self.path / "requests"

    @property
    def refused_requests(self) -> Path:
        """Requests that could not be honoured, each with its reason."""
        return self.requests / "refused"

    @property
    def leases(self) -> Path:
        """One file an attempt: who trained."""
        return self.path / "lease"

    @property
    def checkpoints(self) -> Path:
        """One folder a checkpoint."""
        return self.path / "checkpoints"

    @property
    def incidents(self) -> Path:
        """What is kept of single steps that went wrong, one folder a step."""
        return self.path / "incidents"

    @property
    def workers(self) -> Path:
        """One log a worker process."""
        return self.path / "workers"

    @property
    def exists(self) -> bool:
        """A run has been created here."""
        return self.identity.is_file()


def create_run(path: Path, clock: Clock) -> RunFolder:
    """Make the folder of a new run. Calling it again, or twice at once, changes nothing.

    Raises:
        UsageError: a run of a newer format is there already.
    """
    folder = RunFolder(path)
    for part in (
        folder.segments, folder.journal, folder.requests, folder.leases,
        folder.checkpoints, folder.workers,
    ):  # fmt: skip
        part.mkdir(parents=True, exist_ok=True)
    if not folder.exists:
        identity = {"format": FORMAT, "name": folder.name, "created": clock.wall()}
        write_json(folder.identity, identity)
    _check_format(folder)
    return folder


def open_run(path_or_name: str | Path, runs: Path = Path("runs")) -> RunFolder:
    """The existing run called `path_or_name` in `runs`, or at that path.

    Raises:
        UsageError: there is none (the nearest names are given), or its format is newer than ours.
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
    near = difflib.get_close_matches(name, existing, n=3, cutoff=0.5)
    if near:
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
    if not runs.is_dir():
        return []
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
_ROOM_BYTES = 4 * RESERVE_BYTES
"""Free space that must be there before space is set aside: the last of it is others' to use."""


def reserve_path(folder: RunFolder) -> Path:
    """Where a run keeps its reserve."""
    return folder.journal / ".reserve"


def why_paused(checkpoints: Path, saved: int | None) -> str:
    """What people are told while a run waits for space.

    Args:
        checkpoints: the run's folder of them.
        saved: step of the newest; None if there is none.
    """
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
            if self._path.exists() or shutil.disk_usage(self._path.parent).free < _ROOM_BYTES:
                return
            self._allocate()
        except OSError:
            self.release()

    def _allocate(self) -> None:
        with self._path.open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            else:
                file.write(bytes(RESERVE_BYTES))
