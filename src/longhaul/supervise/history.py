"""The failures of a run in its journal, and what a healed replica leaves for its supervisor."""

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longhaul.core.clocks import Clock, start_bucket
from longhaul.core.events import WRITTEN_BESIDE, EventKind
from longhaul.core.files import write_json
from longhaul.core.records import Decision, Event, Record
from longhaul.core.strict import read_object
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import Lease
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal, read_last
from longhaul.store.catalogue import usable
from longhaul.supervise.restart import Failure

WHO = "supervisor"
_BESIDE = WRITTEN_BESIDE | {EventKind.REPLICA_LOST, EventKind.REPLICA_BACK}
_NEAR_END = 32


def failures(folder: RunFolder) -> list[Failure]:
    """Every failure of the run so far, in order."""
    return [
        Failure(
            cause=str(event.data["cause"]),
            remedy=event.data["remedy"],
            step=event.data["reached"],
            time=event.time,
            went_back=event.data["poisoned"] is not None,
            cordoned=next(iter(event.data.get("cordoned", ())), ""),
        )
        for event in read_journal(folder, steps=False)
        if isinstance(event, Event)
        and event.kind == EventKind.ATTEMPT_ENDED
        and "cause" in event.data
    ]


def usable_checkpoints(folder: RunFolder) -> dict[int, str]:
    """Step → manifest hash of the checkpoints that a restart might go on from."""
    recorded = load_ledger(folder)[0].checkpoint_health
    return {there.step: there.manifest_sha256 for there in usable(folder.checkpoints, recorded)}


def unaccounted(
    folder: RunFolder, attempt: int, began: Seconds, now: Seconds
) -> dict[str, Seconds]:
    """Bucket → seconds of an attempt that no record of it accounts for: after its last one
    they went into noticing that nothing follows; without any, into starting.
    """
    last = [
        record
        for record in read_last(folder, _NEAR_END)
        if record.attempt == attempt and not _is_beside(record)
    ]
    if last:
        return {"detection": round(max(now - last[-1].time, 0.0), 6)}
    before = (r for r in read_journal(folder, steps=False) if r.attempt < attempt)
    return {start_bucket(before): round(max(now - began, 0.0), 6)}


def _is_beside(record: Record) -> bool:
    """A supervisor wrote it while, or after, others trained: it accounts for none of their time."""
    if isinstance(record, Decision):
        return record.who == WHO
    return isinstance(record, Event) and record.kind in _BESIDE


@dataclass(frozen=True, slots=True)
class SupervisedRun:
    """What all parts of a supervisor share."""

    folder: RunFolder
    lease: Lease
    clock: Clock
    say: Callable[[str], None]
    """Tells people."""

    def emit(
        self, kind: str, step: int, seconds: Mapping[str, Seconds] | None = None, **data: Any
    ) -> Event:
        """Write an event of the present attempt, durably where possible; no run ends for it."""
        event = Event(
            kind=kind, attempt=self.lease.attempt, step=step, time=self.clock.wall(),
            seconds=seconds or {}, data=data,
        )  # fmt: skip
        with closing(self._journal()) as journal:
            try:
                journal.append_durably(event)
            except OSError:
                journal.append(event)
        return event

    def poison(self, checkpoint: int, manifest: str, step: int, reason: str) -> None:
        """Decide that a checkpoint is not to be used again. It is not so after an OSError: it could
        not be written; or a NotOwner: another attempt has taken the run over.
        """
        data = {"checkpoint": checkpoint, "health": "poisoned", "manifest": manifest}
        decision = Decision(
            kind="checkpoint-health",
            attempt=self.lease.attempt,
            step=step,
            time=self.clock.wall(),
            who=WHO,
            reason=reason,
            data=data,
        )
        with closing(self._journal()) as journal:
            journal.append_durably(decision)

    def _journal(self) -> Journal:
        lease = self.lease
        return Journal(self.folder, lease.attempt, author=WHO, still_owner=lease.may_decide)


@dataclass(frozen=True, slots=True)
class PeerRecovery:
    """A replica has been given a peer's state."""

    peer: int
    step: int
    """Updates that the peer had made."""
    monotonic: Seconds
    wall: Seconds


def write_peer_recovery(folder: RunFolder, number: int, peer: int, step: int) -> None:
    """Keep it; a full disk must not end a replica."""
    peer_recovery = PeerRecovery(peer, step, time.monotonic(), time.time())
    with suppress(OSError):
        write_json(_path(folder, number), asdict(peer_recovery))


def forget_peer_recovery(folder: RunFolder, number: int) -> None:
    """Whatever was told is of an earlier life."""
    with suppress(OSError):
        _path(folder, number).unlink(missing_ok=True)


def read_peer_recovery(folder: RunFolder, number: int) -> PeerRecovery | None:
    """How a replica was healed in its present life; None if it was not."""
    try:
        return PeerRecovery(**read_object(_path(folder, number)))
    except (OSError, ValueError, TypeError):
        return None


def _path(folder: RunFolder, number: int) -> Path:
    return folder.workers / f"{number}.healed"
