"""What is fetched from another tier: a checkpoint, and the log of a run that is not here.

While it comes a checkpoint is `.step-120.1a2b3c4d5e6f.download`, named by its manifest's hash, so
that the next attempt, whoever makes it, goes on where one was cut off.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.output import Say
from longhaul.logbook.ledger import CheckpointHealth
from longhaul.store.catalogue import Checkpoint, checkpoint_path, commit, health_of, partial_path
from longhaul.store.manifest import FileEntry, verify
from longhaul.store.remote import RemoteTier
from longhaul.store.remote_log import PAGES, Index, editions, place_of
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import StoreError


@dataclass(frozen=True, slots=True)
class Found:
    """A run log in a store."""

    files: StoreFiles
    editions: tuple[Index, ...]
    """Newest first, at least one."""
    places: frozenset[str]
    """Of the pages that are there, whole or not."""

    @property
    def newest(self) -> Index:
        """What is brought back, as far as it can be had."""
        return self.editions[0]


def find_run_log(files: StoreFiles) -> Found | None:
    """The run log in one store; None if there is none. StoreError if it does not answer."""
    if not (there := tuple(editions(files))):
        return None
    return Found(files, there, frozenset(f"{PAGES}/{name}" for name in files.names(PAGES)))


def best_first(found: Sequence[Found]) -> list[Found]:
    """Those of the run that the first store knows, the newest edition first."""
    same = [run_log for run_log in found if run_log.newest.created == found[0].newest.created]
    return sorted(same, key=lambda run_log: run_log.newest.edition, reverse=True)


def bring_run_log(run_logs: Sequence[Found], into: Path, say: Say) -> list[str]:
    """Fetch the pages of the newest edition; what could not be had, and what was taken instead.

    Run logs are as by `best_first`: where one store fails, the next one's page is taken.

    Raises:
        StoreError: a store that may have a page does not answer, and no other one gave it.
        OSError: the local medium refused.
    """
    lacking = []
    for page in run_logs[0].newest.pages:
        target = into / page.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _from_any(run_logs, page, target, say):
            target.unlink(missing_ok=True)
            lacking.append(f"{page.name} ({_an_older_one(run_logs, page, target, say)})")
    return lacking


def _from_any(run_logs: Sequence[Found], page: FileEntry, target: Path, say: Say) -> bool:
    place, silent = place_of(page), None
    for run_log in run_logs:
        if place not in run_log.places:
            continue
        try:
            run_log.files.fetch(place, target, page, say)
            return True
        except StoreError as error:
            if not _is_damaged(run_log, page):
                silent = error
    if silent is not None:
        raise silent
    return False


def _is_damaged(run_log: Found, page: FileEntry) -> bool:
    """Whether asking again would not help, because the store does answer."""
    try:
        return not run_log.files.holds(place_of(page), page)
    except StoreError:
        return False


def _an_older_one(run_logs: Sequence[Found], page: FileEntry, target: Path, say: Say) -> str:
    """Take a page as an older edition has it; what was taken, in words."""
    for run_log in run_logs:
        for index in run_log.editions:
            older = next((other for other in index.pages if other.name == page.name), page)
            if older != page and _from_any([run_log], older, target, say):
                return f"an older edition of it, {older.size_bytes} of {page.size_bytes} bytes"
    return "nothing is left of it"


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

    Of the tiers the first one's copy is tried first. They may hold different checkpoints of one
    step, so each is judged by its own manifest.
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
    say: Say,
) -> Path:
    """Fetch a checkpoint that `tier` lists into the run's `checkpoints/`, verified and committed.

    Raises:
        StoreError: the store refused, hung, or gives other bytes; what has come so far stays.
        RefusedCheckpoint: the local medium gives back other bytes.
        OSError: the local medium refused.
        NotOwner: the lease went to another attempt.
    """
    step, sha256 = checkpoint.step, checkpoint.manifest_sha256
    coming = folder / f".step-{step}.{sha256[:12]}{_SUFFIX}"
    folder.mkdir(exist_ok=True)
    for path in coming.glob(".*.tmp"):  # of a process that was killed while it wrote the manifest
        path.unlink()
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
