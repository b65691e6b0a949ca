"""A run arrives in a cluster: run log and checkpoint come from a store, then its folder opens.

The folder is closed before its first byte comes and opens with the last step, so that nothing half
there is ever started. Killed at any moment, the same command goes on; what has come stays.
"""

import errno
import hashlib
import platform
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.clocks import Clock
from longhaul.core.errors import DataError, NeedsPerson, UsageError
from longhaul.core.files import fsync_folder, write_json
from longhaul.core.output import Say
from longhaul.core.strict import entries_of, read_object
from longhaul.core.units import Bytes, short_bytes, short_seconds
from longhaul.data.dataset import MANIFEST, identity_of, read_manifest
from longhaul.data.verification import pin_texts
from longhaul.logbook.folder import DISK_FULL, RunFolder, created_of
from longhaul.logbook.holder import newest_attempt
from longhaul.logbook.lease import Lease, acquire, user_name, watched_silent
from longhaul.logbook.moves import RunMove, end_move, move_of, refuse_if_moved, write_move
from longhaul.logbook.run_spec import read_run_spec
from longhaul.store.catalogue import Checkpoint, catalogue, set_aside
from longhaul.store.fetching import bring_here
from longhaul.store.manifest import FileEntry, RefusedCheckpoint, verify
from longhaul.store.remote import RemoteTier
from longhaul.store.remote_log import Index, editions, place_of
from longhaul.store.run_offer import RunOffer, offers, take, taken_by
from longhaul.store.store_files import StoreFiles, local_pieces
from longhaul.store.transfers import StoreError

_STAGING = ".arriving"
_OPTION_PATHS = ("init.from", "supervise.node_ledger", "supervise.signatures", "checkpoint.remote")
"""Settings that may name files of the source."""


@dataclass(frozen=True)
class Arrival:
    """What a person asks for."""

    here: str
    """The cluster that the run comes to."""
    source: str
    """The one that it comes from; empty: whichever has offered it."""
    prepared: Path
    """Where prepared text lies here."""


def arrive(
    folder: RunFolder, asked: Arrival, files: StoreFiles, clock: Clock, say: Say
) -> RunOffer:
    """Bring the run that was offered in a store here, and open its folder; done before, nothing
    is fetched.

    Raises:
        UsageError: no offer is there, or not to this cluster, or another run has this name here.
        LeaseHeld: another process does the same.
        StoreError: the store does not answer; the same command goes on later.
        NeedsPerson: the disk here is full, or refuses.
    """
    offer = _offer_to(folder, asked, files)
    if _is_here(folder, offer):
        say(f"run {folder.name} has arrived already, at step {offer.step:,}")
        return offer
    index, checkpoint = _offered(files, offer)
    try:
        _close(folder, offer, files)
        # First of all: a lease can be renewed and released only where the run is known.
        identity = [page for page in index.pages if page.name == folder.identity.name]
        _bring_pages(folder, identity, files, say)
        silent = watched_silent(folder, clock, say)
        with acquire(folder, clock, silent, after=offer.attempt).keep() as lease:
            _bring(folder, offer, index, checkpoint, files, lease, asked.prepared, clock, say)
    except OSError as error:
        raise _refused(folder, error) from error
    return offer


def _offer_to(folder: RunFolder, asked: Arrival, files: StoreFiles) -> RunOffer:
    known = offers(files)
    if not known:
        raise UsageError(
            f"{files.name}: no run {folder.name} is offered there",
            f"`longhaul run move {folder.name} --to {asked.here}` where it lies now, first",
        )
    offer = known[0]
    if offer.destination != asked.here or asked.source not in ("", offer.source):
        raise UsageError(
            f"run {folder.name} was offered by cluster {offer.source} to {offer.destination}, not "
            f"by {asked.source or 'any'} to {asked.here}",
            f"it arrives with `longhaul run move {folder.name} --from {offer.source}` in "
            f"{offer.destination}",
        )
    return offer


def _is_here(folder: RunFolder, offer: RunOffer) -> bool:
    """Whether the offer was taken into this folder before; UsageError if it must not be."""
    move = move_of(folder)
    if move is not None and (move.state == "leaving" or move.move == offer.move):
        if move.state == "arriving":
            return False
        refuse_if_moved(folder)
    if not folder.exists:
        return False
    if created_of(folder) != offer.created:
        raise UsageError(
            f"{folder.path}: another run of this name is here",
            "move it to another folder, or give another --runs-dir",
        )
    known = newest_attempt(folder)
    if move is not None:
        if move.state == "away" and known >= offer.attempt:
            # An offer of an earlier round, which was taken; its store has no later one yet.
            refuse_if_moved(folder)
        return False
    if known > offer.attempt:
        return True
    raise UsageError(
        f"run {folder.name} is here already and was never moved away, though "
        f"{offer.source} offers a later state of it",
        "find out which of them is meant, and move this folder elsewhere if it is the other",
    )


def _offered(files: StoreFiles, offer: RunOffer) -> tuple[Index, Checkpoint]:
    """The run log and the checkpoint of an offer; StoreError if one is not there."""
    for index in editions(files):
        if index.created == offer.created and index.edition.attempt > offer.attempt:
            raise UsageError(
                f"{files.name}: attempt {index.edition.attempt} at the run was made since it was "
                f"offered, from {index.host}",
                "the run was taken already; it lives there",
            )
        if index.edition.path == offer.edition:
            break
    else:
        raise StoreError(f"{files.name}: the run log of the offer is gone ({offer.edition})")
    for checkpoint in RemoteTier(files).checkpoints():
        if checkpoint.step == offer.step and checkpoint.manifest_sha256 == offer.manifest:
            return index, checkpoint
    raise StoreError(f"{files.name}: the offered checkpoint step-{offer.step} is gone")


def _close(folder: RunFolder, offer: RunOffer, files: StoreFiles) -> None:
    write_move(
        folder,
        RunMove(
            move=offer.move, state="arriving", source=offer.source, destination=offer.destination,
            tier=files.name, step=offer.step, who=offer.who, reason=offer.reason, time=offer.time,
        ),
    )  # fmt: skip
    for part in (folder.leases, folder.checkpoints, folder.journal, folder.requests,
                 folder.segments, folder.workers):  # fmt: skip
        part.mkdir(parents=True, exist_ok=True)


def _bring(
    folder: RunFolder,
    offer: RunOffer,
    index: Index,
    checkpoint: Checkpoint,
    files: StoreFiles,
    lease: Lease,
    prepared: Path,
    clock: Clock,
    say: Say,
) -> None:
    began, token = clock.monotonic(), f"{folder.path.resolve()} on {platform.node()}"
    others = taken_by(files, offer)
    if others and not others.endswith(f": {token}"):
        raise NeedsPerson(
            f"run {folder.name}: this offer was taken before by {others}",
            f"if that folder is lost for good, remove moves/{offer.move}.taken in {files.name}, "
            "and give the same command again",
        )
    _refuse_without_room(folder, index.size_bytes + checkpoint.size_bytes)
    say(f"fetching the run log ({short_bytes(index.size_bytes)}) from {files.name}")
    _bring_pages(folder, index.pages, files, say)
    _bring_checkpoint(folder, offer, checkpoint, files, lease, say)
    _settle_paths(folder, offer, prepared, say)
    if newest_attempt(folder) > lease.attempt:
        raise UsageError(f"run {folder.name}: another process fetches it", "let that one end")
    if not others:
        take(files, offer, f"{user_name()}: {token}")
    # After that, and not before: whoever withdraws an offer looks for the taking last.
    if offer not in offers(files):
        raise NeedsPerson(
            f"run {folder.name}: cluster {offer.source} has withdrawn its offer",
            f"it goes on there; remove {folder.path}, which nothing starts from",
        )
    shutil.rmtree(folder.path / _STAGING, ignore_errors=True)
    end_move(folder)
    say(
        f"run {folder.name} is here at step {offer.step:,}, from {offer.source}, after "
        f"{short_seconds(clock.monotonic() - began)}\n"
        f"  → `longhaul train {folder.path}` goes on from there"
    )


def _bring_pages(
    folder: RunFolder, pages: Sequence[FileEntry], files: StoreFiles, say: Say
) -> None:
    """Bring the run log here, each page compared before it takes its name."""
    changed = {folder.path}
    for page in pages:
        target, coming = folder.path / page.name, folder.path / _STAGING / page.name
        if _is_there(target, page):
            continue
        coming.parent.mkdir(parents=True, exist_ok=True)
        files.fetch(place_of(page), coming, page, say)
        target.parent.mkdir(parents=True, exist_ok=True)
        coming.replace(target)
        changed.add(target.parent)
    for parent in changed:
        fsync_folder(parent)


def _is_there(target: Path, page: FileEntry) -> bool:
    """Whether a page is here whole. A journal that has gained lines here, as of an evaluator that
    outlived the move, is: they stay.
    """
    if not target.is_file() or (size := target.stat().st_size) < page.size_bytes:
        return False
    if size > page.size_bytes and not page.name.endswith(".jsonl"):
        return False
    digest = hashlib.sha256()
    for piece in local_pieces(target, page.size_bytes):
        digest.update(piece)
    return digest.hexdigest() == page.sha256


def _bring_checkpoint(
    folder: RunFolder,
    offer: RunOffer,
    checkpoint: Checkpoint,
    files: StoreFiles,
    lease: Lease,
    say: Say,
) -> None:
    there = catalogue(folder.checkpoints)
    # Later ones that lie here are of a line that the run has left: they were damaged when it went,
    # or it went back since. None may be gone on from.
    if later := [c for c in there if c.step > offer.step]:
        aside = set_aside(later)
        say(f"{', '.join(c.path.name for c in later)}: later than the offer, moved to {aside}")
    for known in there:
        if known.step == offer.step and known.manifest_sha256 == offer.manifest:
            try:
                verify(known.path)
                return
            except RefusedCheckpoint as refusal:
                say(f"WARNING: {refusal.message}; fetching it anew")
    say(f"fetching step-{offer.step} ({short_bytes(checkpoint.size_bytes)}) from {files.name}")
    bring_here(
        checkpoint,
        RemoteTier(files),
        folder.checkpoints,
        lease.attempt,
        lambda: newest_attempt(folder) <= lease.attempt,
        say,
    )


def _settle_paths(folder: RunFolder, offer: RunOffer, prepared: Path, say: Say) -> None:
    """Let the run find its text on this machine, and say which other paths are not here."""
    spec = read_run_spec(folder)
    body = read_object(folder.run_spec) | {"prepared": str(prepared.resolve())}
    write_json(folder.run_spec, body)
    here = _texts_here(prepared)
    found = [(here.get(t.identity, prepared.resolve() / t.name), t.identity) for t in offer.texts]
    pin_texts(folder, found)
    if found and found[-1][1] not in here:
        say(
            f"WARNING: its prepared text {offer.texts[-1].name} is not in {prepared}\n"
            f"  → `longhaul data pull {offer.texts[-1].name}` brings it; without it the start "
            "prepares it again from the recipe's sources, if they are here"
        )
    for path in _OPTION_PATHS:
        section, key = path.split(".")
        value = (spec.values.get(section) or {}).get(key)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and one and "://" not in one and not Path(one).exists():
                say(f"WARNING: {path}: {one} is not here; change it with --set at the next start")


def _texts_here(prepared: Path) -> dict[str, Path]:
    """Identity → folder of the prepared texts that are here whole, by their manifests."""
    found: dict[str, Path] = {}
    for name in sorted(entries_of(prepared)):
        path = prepared / name
        if (path / MANIFEST).is_file():
            with suppress(DataError):
                found[identity_of(read_manifest(path))] = path.resolve()
    return found


def _refuse_without_room(folder: RunFolder, needed: Bytes) -> None:
    # What has come of it already needs no room again.
    coming = [*folder.checkpoints.glob(".step-*/*"), *(folder.path / _STAGING).rglob("*")]
    here = sum(path.stat().st_size for path in coming if path.is_file())
    free = shutil.disk_usage(folder.path).free
    if free + here < needed:
        raise OSError(
            errno.ENOSPC,
            f"{short_bytes(needed)} are to come, and {short_bytes(free)} are free",
            str(folder.path),
        )


def _refused(folder: RunFolder, error: OSError) -> NeedsPerson:
    what = "the disk is full" if error.errno in DISK_FULL else "it cannot be written"
    return NeedsPerson(
        f"run {folder.name} could not be brought to {folder.path}: {what} ({error.strerror})",
        "mend that, and give the same command again: it goes on where it was; nothing starts here "
        "before it is whole",
    )
