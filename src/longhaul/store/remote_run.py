"""A run that lies in a store, looked at from a machine that never trained it.

Its log is copied to `RUNS/.elsewhere/HASH/NAME/`, where no command takes it for a run of this
machine. Journals grow, so that a later look fetches only what they have gained.
"""

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longhaul.core.addresses import sealed, without_secrets
from longhaul.core.errors import UsageError
from longhaul.core.files import sha256_of
from longhaul.core.output import Say
from longhaul.core.records import Event, to_line
from longhaul.logbook.folder import RunFolder
from longhaul.store.catalogue import Checkpoint
from longhaul.store.fetching import bring_run_log, find_run_log
from longhaul.store.remote import RemoteTier
from longhaul.store.remote_log import FOLDER
from longhaul.store.scores import bring_scores, score_path
from longhaul.store.store_files import StoreFiles

COPIES = ".elsewhere"
"""Folder below a folder of runs that holds copies of logs."""


def is_remote(run: str | Path) -> bool:
    """Whether this is the address of a run in a store: with a scheme, or a store's folder."""
    return "://" in str(run) or (not RunFolder(Path(run)).exists and (Path(run) / FOLDER).is_dir())


class RemoteRun:
    """A run in the store at `address`, and the copy of its log in `folder`."""

    def __init__(self, address: str, folder: RunFolder, say: Say) -> None:
        self.address = without_secrets(address)
        self.folder = folder
        self.files = StoreFiles(address)
        self.tier = RemoteTier(self.files)
        self._say = say

    def refresh(self) -> None:
        """Bring the copy of the log up to date.

        Raises:
            UsageError: no run lies there.
            StoreError: the store does not answer.
        """
        found = find_run_log(self.files)
        if found is None:
            raise UsageError(
                f"{self.address}: no run log lies there",
                "give what checkpoint.remote says, with the run's name behind it",
            )
        with self._alone():
            for page in found.newest.pages:
                path = self.folder.path / page.name
                # What grows is gone on with; anything else that has changed is fetched anew.
                grows = page.name.endswith(".jsonl") or not path.exists()
                if not grows and sha256_of(path) != page.sha256:
                    path.unlink()
            for lacking in bring_run_log([found], self.folder.path, self._say):
                self._say(f"WARNING: of the run log could not be had: {lacking}")
            bring_scores(self.files, self.folder)

    def send_score(self, event: Event) -> None:
        """Leave a checkpoint's result where others find it; StoreError as `refresh`."""
        self.files.send_bytes(f"{to_line(event)}\n".encode(), score_path(event))

    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints there, lowest step first; StoreError as `refresh`."""
        return self.tier.checkpoints()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Two that look at once would each add the same bytes to a journal."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        with self.folder.path.with_name(f".{self.folder.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def look_at(address: str, runs: Path, say: Say) -> RemoteRun:
    """The run at an address, its log copied here; errors as of `RemoteRun.refresh`."""
    plain = sealed(address).rstrip("/")
    if "://" not in plain:
        plain = str(Path(plain).resolve())
    digest = hashlib.sha256(plain.encode()).hexdigest()[:12]
    name = without_secrets(plain).rpartition("/")[2] or "run"
    remote = RemoteRun(plain, RunFolder(runs / COPIES / digest / name), say)
    remote.refresh()
    return remote
