"""Going on from a snapshot that outlived its process, in memory that the supervisor owns.

Chosen is the newest one that every rank has whole, of the same layout, newer than every checkpoint
that could be used, and that nothing decided since speaks against. Its checksum is compared; where
that fails on any rank, the one before it is tried, and in the end the disk.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from longhaul.checkpoint.capture import PartsFor, StateMismatch
from longhaul.checkpoint.host_buffers import SnapshotInSharedMemory
from longhaul.checkpoint.snapshots import DamagedSnapshot, SnapshotRing
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Decision, Event, Record
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_log import RunLog
from longhaul.parallel.control import Control, all_do
from longhaul.store.catalogue import catalogue, newest_usable, sweep, usable

Key = tuple[int, int, int]
_LAG_STEPS = 2
"""What a device computes is known to be complete so much later."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an attempt goes on from."""

    step: int | None
    """None: from the beginning."""
    where: Literal["disk", "memory", "replica"]

    @property
    def checkpoint(self) -> int | None:
        """Step of the checkpoint that was restored; what lay in memory is on no disk yet."""
        return self.step if self.where == "disk" else None

    def __str__(self) -> str:
        if self.step is None:
            return "the beginning, there is no checkpoint"
        where = {"disk": "", "memory": ", in memory", "replica": ", of another replica"}
        return f"step {self.step}{where[self.where]}"


def restore_survivor(
    run_log: RunLog,
    ring: SnapshotRing,
    parts_for: PartsFor,
    say: Say,
    control: Control | None = None,
) -> int | None:
    """Fill the parts from memory, on all ranks: the step; None if there is nothing to go on from.
    The others call `restore_shared_as_ordered`. What is not held again gives its memory back,
    whatever comes of it.
    """
    began, found = run_log.clock.monotonic(), ring.survivors()
    keys = _common(found, control)
    if keys:
        sweep(run_log.folder.checkpoints, run_log.lease.attempt)
        history = list(read_journal(run_log.folder, steps=False))
        there = catalogue(run_log.folder.checkpoints)
        usable_now = newest_usable(there, run_log.ledger.checkpoint_health)
        saved = next((checkpoint.step for checkpoint in usable_now), None)
        trusted = [] if repeats(history) else [s for s in found if not denied(s, history)]
        # Of one step, the last attempt's.
        sound = list({s.step: s.key for s in trusted if s.key in keys}.values())
        newest = 0 if saved is None else saved
        while sound and sound[-1][0] > newest:
            if control is not None:
                control.share(tuple(sound))
            step = sound[-1][0]
            if _handed_back(ring, sound, parts_for, say):
                lost, fewer = max(0, run_log.history.steps_made - step), step - newest
                text = (
                    f"restored step {step} from memory that outlived the workers: "
                    f"{lost} steps lost, {fewer} fewer than from the disk"
                )
                run_log.emit(
                    EventKind.RESTORED,
                    step,
                    where="memory",
                    steps_lost=lost,
                    saved_steps=fewer,
                    newest_checkpoint=saved,
                    took_s=round(run_log.clock.monotonic() - began, 3),
                    text=text,
                )
                say(text)
                return step
            sound.pop()
        if control is not None:
            control.share(())
    ring.adopt(())
    return None


def restore_shared_as_ordered(ring: SnapshotRing, parts_for: PartsFor, control: Control) -> bool:
    """Do what rank 0 does in `restore_survivor`, on every other rank; whether a state was found."""
    keys: tuple[Key, ...] = ()
    if _common(ring.survivors(), control):
        while keys := control.share(keys):
            if _handed_back(ring, keys, parts_for, lambda _: None):
                return True
    ring.adopt(())
    return False


def denied(snapshot: SnapshotInSharedMemory, since: Sequence[Record]) -> str:
    """Why a snapshot must not be gone on from, as the journal says; empty if it may.

    A checkpoint that its reader poisons has bad bytes, which says nothing against a snapshot; one
    that somebody else poisons has a bad state, and so has every later one. The supervisor does so
    once an attempt has ended, and numbers found wrong end it: both are later than its snapshots.
    What was written before the snapshot is passed over, by attempt, as clocks are set back.
    """
    for record in since:
        if record.attempt < snapshot.attempt:
            continue
        later = record.attempt > snapshot.attempt
        if later and isinstance(record, Event) and record.kind == EventKind.MOVED:
            return "the run was moved to another cluster since"
        if isinstance(record, Decision):
            # One that ends no attempt leaves its time alone to order it by.
            if not later and record.kind == "recover" and record.time < snapshot.time:
                continue
            back = record.data.get("rollback") if record.kind == "recover" else None
            if back and int(back["to"]) < snapshot.step:
                return f"the run went back to step {back['to']} since"
            if any(step <= snapshot.step for step in _poisoned(record)):
                return "an earlier checkpoint was poisoned since"
        elif isinstance(record, Event) and record.kind == EventKind.MACHINE_VERDICT:
            sound = record.data.get("sound_step")
            corrupt = record.data.get("kind") == "corrupt"
            if corrupt and (sound is None or snapshot.step > sound):
                return "a machine may have computed wrong numbers by then"
    return ""


def repeats(events: Sequence[Record]) -> bool:
    """Whether the last two failures are the same at the same step: memory is trusted once."""
    ends = (e for e in events if isinstance(e, Event) and e.kind == EventKind.ATTEMPT_ENDED)
    failed = [(e.data["cause"], e.data.get("reached")) for e in ends if "cause" in e.data]
    if len(failed) < 2:
        return False
    (before, earlier), (cause, step) = failed[-2:]
    if step is None or earlier is None:
        return bool(cause == before and step == earlier)
    return bool(cause == before and abs(int(step) - int(earlier)) <= _LAG_STEPS)


def _poisoned(decision: Decision) -> list[int]:
    data = decision.data
    if decision.kind == "recover":
        return [int(step) for step, _ in data.get("poison", ())]
    health = decision.kind == "checkpoint-health" and decision.who != "pilot"
    return [int(data["checkpoint"])] if health and data.get("health") == "poisoned" else []


def newest_saved(origin: Origin, folder: RunFolder) -> int | None:
    """Step of the newest checkpoint on the disk that an attempt can be gone back to."""
    if origin.where == "disk":
        return origin.step  # the newest that could be read
    recorded = load_ledger(folder)[0].checkpoint_health
    return max((there.step for there in usable(folder.checkpoints, recorded)), default=None)


def _common(found: Sequence[SnapshotInSharedMemory], control: Control | None) -> list[Key]:
    of_all = all_do(control, lambda: {snapshot.key for snapshot in found})
    return sorted(set.intersection(*of_all))


def _handed_back(ring: SnapshotRing, keys: Sequence[Key], parts_for: PartsFor, say: Say) -> bool:
    """Hold those of `keys`, and fill the parts from the last of them."""
    with suppress(StateMismatch):
        by_key = {snapshot.key: snapshot for snapshot in ring.survivors()}
        ring.adopt([by_key[key] for key in keys])
        try:
            ring.hand_back(keys[-1][0], parts_for)
        except DamagedSnapshot as damage:
            say(f"WARNING: {damage}; trying the one before it")
        else:
            return True
    return False
