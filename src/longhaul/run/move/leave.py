"""A run leaves its cluster: checkpoint, run log and offer go to a store, in this order.

Killed at any moment, the same command goes on. Until the checkpoint is there nothing has changed
here; then the folder is closed, and only after that an offer is written. So at no moment may two
clusters train the run.
"""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from longhaul.core.clocks import Clock
from longhaul.core.errors import NeedsPerson, NotOwner, UsageError
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Event, StepRecord
from longhaul.core.units import short_bytes, short_seconds
from longhaul.data.verification import pinned_texts
from longhaul.logbook.folder import RunFolder, created_of
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import Lease, acquire, refuse_if_held, watched_silent
from longhaul.logbook.moves import (
    RunMove,
    RunMoved,
    end_move,
    move_of,
    refuse_if_moved,
    write_move,
)
from longhaul.logbook.reading import read_journal, read_last
from longhaul.logbook.run_history import read_run_history
from longhaul.logbook.run_spec import read_run_spec
from longhaul.store.catalogue import Checkpoint, catalogue, newest_usable
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.remote import RemoteTier
from longhaul.store.remote_log import RunLogMirror, editions
from longhaul.store.run_offer import RunOffer, Text, offers, render_offer, taken_by
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import StoreError
from longhaul.supervise.ownership import fence, left_over


@dataclass(frozen=True)
class Departure:
    """What a person asks for."""

    source: str
    destination: str
    who: str
    reason: str


def leave(
    folder: RunFolder, asked: Departure, files: StoreFiles, clock: Clock, say: Say
) -> RunMove:
    """Send a run that nobody trains to the store of its destination, and close its folder; done
    before, nothing is sent.

    Raises:
        LeaseHeld: somebody trains it; the message says who.
        RunMoved, UsageError: it is elsewhere, on its way to another cluster, or has saved nothing.
        PlaceTaken: its place in the store is that of another run, or of a later attempt.
        StoreError: the store does not answer; the same command goes on later.
    """
    if (done := _gone_already(folder, asked, files)) is not None:
        say(f"run {folder.name} has left for {done.destination} already")
        return done
    silent = watched_silent(folder, clock, say)
    refuse = partial(refuse_if_held, folder, clock, silent)
    refuse()
    if left_over(folder):
        fence(folder, read_run_spec(folder).settings().supervise.grace_s, say, refuse)
    with acquire(folder, clock, silent).keep() as lease:
        if (done := _gone_already(folder, asked, files)) is not None:
            return done
        return _leave(folder, asked, files, lease, clock, say)


def cancel(folder: RunFolder, files: StoreFiles, clock: Clock, who: str) -> None:
    """End a move that no destination has taken, and open the folder again.

    Raises:
        UsageError: no move is under way here.
        RunMoved: it is too late, or a destination is taking the run at this moment.
        StoreError: the store does not answer; nobody knows whether it is too late.
    """
    with acquire(folder, clock).keep() as lease:
        move = move_of(folder)
        if move is None:
            raise UsageError(f"run {folder.name}: no move is under way here", "nothing is to do")
        if move.state == "arriving":
            refuse_if_moved(folder)
        for offer in [offer for offer in offers(files) if offer.move == move.move]:
            _withdraw(folder, offer, files)
        events = [r for r in read_journal(folder, steps=False) if isinstance(r, Event)]
        if _moved(events, move.move) is not None:
            back = replace(
                move, source=move.destination, destination=move.source, who=who,
                reason="the move was cancelled",
            )  # fmt: skip
            _write_down(folder, back, lease, clock, move.step, _moved(events, move.move) or "")
        end_move(folder)


def _withdraw(folder: RunFolder, offer: RunOffer, files: StoreFiles) -> None:
    """Take an offer back before anybody has taken it.

    Here the offer goes before the taking is looked for; a destination writes that it takes the run
    before it looks for the offer (`arrive.py`). One of the two sees the other, so that at most one
    opens its folder.
    """
    if not taken_by(files, offer):
        files.remove(offer.path)
        if not taken_by(files, offer):
            return
        files.send_bytes(render_offer(offer), offer.path)
    raise RunMoved(
        f"run {folder.name} has been taken by {taken_by(files, offer)}: it lives in "
        f"{offer.destination}",
        f"`longhaul run move {folder.name} --to {offer.source}` there brings it back",
    )


def _gone_already(folder: RunFolder, asked: Departure, files: StoreFiles) -> RunMove | None:
    """The move that was done before; None if there is something to do."""
    move = move_of(folder)
    if move is None:
        return None
    if move.state == "arriving" or move.destination != asked.destination:
        refuse_if_moved(folder)
    if move.state == "leaving":
        # Its process may have died after the offer: the destination may train by now.
        if not _is_offered(move, files):
            return None
        move = replace(move, state="away")
        write_move(folder, move)
    return move


def _is_offered(move: RunMove, files: StoreFiles) -> bool:
    return any(offer.move == move.move for offer in offers(files))


def _leave(
    folder: RunFolder,
    asked: Departure,
    files: StoreFiles,
    lease: Lease,
    clock: Clock,
    say: Say,
) -> RunMove:
    began, created = clock.monotonic(), created_of(folder)
    if created is None:
        raise UsageError(f"{folder.identity}: damaged", "mend it: a run is known by it")
    _refuse_foreign_place(files, created)
    checkpoint = _send_newest(folder, files, lease, say)
    size = short_bytes(checkpoint.size_bytes)
    say(f"step-{checkpoint.step} ({size}) is in {files.name}; closing the run here")
    before = move_of(folder)
    move = RunMove(
        move=before.move if before else secrets.token_hex(8),
        state="leaving",
        source=asked.source,
        destination=asked.destination,
        tier=files.name,
        step=checkpoint.step,
        who=asked.who,
        reason=asked.reason,
        time=clock.wall(),
    )
    write_move(folder, move)
    events = [r for r in read_journal(folder, steps=False) if isinstance(r, Event)]
    if _moved(events, move.move) is None:  # it may have been begun before
        _write_down(folder, move, lease, clock, checkpoint.step, checkpoint.manifest_sha256)
    writer = hashlib.sha256(repr(lease.since).encode()).hexdigest()[:8]
    RunLogMirror(folder, files, lease.attempt, writer, clock).send(lease.is_ours)
    edition = next(editions(files)).edition
    if edition.attempt != lease.attempt or edition.writer != writer:
        raise StoreError(f"{files.name}: another run log was written there meanwhile")
    offer = RunOffer(
        move=move.move,
        attempt=lease.attempt,
        created=created,
        source=move.source,
        destination=move.destination,
        step=checkpoint.step,
        manifest=checkpoint.manifest_sha256,
        edition=edition.path,
        texts=tuple(Text(name=path.name, identity=known) for path, known in pinned_texts(folder)),
        who=move.who,
        reason=move.reason,
        time=move.time,
    )
    if not lease.is_ours():
        raise NotOwner(f"run {folder.name} was not offered: another attempt owns it")
    files.send_bytes(render_offer(offer), offer.path)
    move = replace(move, state="away")
    write_move(folder, move)
    say(f"offered to {move.destination} after {short_seconds(clock.monotonic() - began)}")
    return move


def _refuse_foreign_place(files: StoreFiles, created: float) -> None:
    newest = next(editions(files), None)
    if newest is not None and newest.created != created:
        raise NeedsPerson(
            f"{files.name} is the place of another run of this name, written from {newest.host}",
            "give one of the two runs another name",
        )


def _send_newest(folder: RunFolder, files: StoreFiles, lease: Lease, say: Say) -> Checkpoint:
    """Bring the newest sound checkpoint there; one that is damaged here gives way to an older."""
    recorded = read_run_history(folder).ledger.checkpoint_health
    there, tier = catalogue(folder.checkpoints), RemoteTier(files)
    reached = _reached(folder)
    for checkpoint in newest_usable(there, recorded):
        if checkpoint.damage:
            say(f"WARNING: {checkpoint.damage}; trying the one before it")
            continue
        say(f"sending step-{checkpoint.step} to {files.name}")
        try:
            tier.send(checkpoint.path, lease.is_ours)
        except RefusedCheckpoint as refusal:
            say(f"WARNING: {refusal.message}; trying the one before it")
            continue
        if reached > checkpoint.step:
            lost = reached - checkpoint.step
            say(f"step {reached:,} was reached; {lost:,} steps are made again there")
        return checkpoint
    raise UsageError(
        f"run {folder.name} has no checkpoint that could be moved ({_listed(there)})",
        "`longhaul train` here until it has saved one, or start the recipe anew there",
    )


def _listed(there: Sequence[Checkpoint]) -> str:
    return f"{len(there)} are damaged or poisoned" if there else "it has saved none"


def _reached(folder: RunFolder) -> int:
    steps = [r.step for r in read_last(folder, 1, events=False) if isinstance(r, StepRecord)]
    return max(steps, default=0)


def _moved(events: Sequence[Event], move: str) -> str | None:
    """The hash of the manifest that went with a move, if the journal tells of the move."""
    for event in events:
        if event.kind == EventKind.MOVED and event.data.get("move") == move:
            return str(event.data.get("manifest", ""))
    return None


def _write_down(
    folder: RunFolder, move: RunMove, lease: Lease, clock: Clock, step: int, manifest: str
) -> None:
    """Write into the journal where the run goes, and end its last attempt with that.

    The next segment, wherever it opens, has this for its reason.
    """
    last = read_run_history(folder).last_segment
    reached, segment = _reached(folder), str(last.number) if last else ""
    data = {
        "source": move.source, "destination": move.destination, "checkpoint": step,
        "manifest": manifest, "move": move.move, "who": move.who,
        "reason": move.reason or "no reason given",
    }  # fmt: skip
    words = f"moved from {move.source} to {move.destination}"
    ended = {"reason": f"{words}: {move.reason}" if move.reason else words}
    journal = Journal(folder, lease.attempt, still_owner=lease.may_decide)
    try:
        # The end first: after the other one nothing is written again.
        for kind, body in ((EventKind.ATTEMPT_ENDED, ended), (EventKind.MOVED, data)):
            journal.append_durably(
                Event(
                    kind=kind, data=body, attempt=lease.attempt, segment=segment, step=reached,
                    time=clock.wall(),
                )
            )  # fmt: skip
    finally:
        journal.close()
