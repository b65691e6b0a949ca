"""The logbook of one attempt: journal, ledger, segments and lease as one thing to write into."""

from collections.abc import Mapping
from typing import Any

from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock, TimeBuckets
from longhaul.core.events import EventKind
from longhaul.core.machine import differences, git_difference, machine
from longhaul.core.records import Decision, Event, Record
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import Lease, user_name
from longhaul.logbook.ledger import LedgerError, LedgerState, write_decision
from longhaul.logbook.run_history import RunHistory
from longhaul.logbook.run_spec import changed_settings
from longhaul.logbook.segments import SegmentOpening, next_major, next_minor, open_segment

NUMBERS_COME_FROM = (
    "software.longhaul", "software.python", "software.git", "software.packages.torch",
    "software.packages.numpy", "machine.cpu", "torch.",
)  # fmt: skip
"""Parts of a fingerprint that other bits may come of."""
_PLACES = ("machine.host", "ranks.")


class RunLog:
    """What the holder of the lease writes into.

    Events carry what `time_buckets` have counted since the record before.
    """

    def __init__(
        self,
        folder: RunFolder,
        lease: Lease,
        history: RunHistory,
        clock: Clock,
        time_buckets: TimeBuckets,
    ) -> None:
        self.folder = folder
        self.lease = lease
        self.segment = history.last_segment
        self.time = time_buckets
        self.history = history
        self.clock = clock
        self._source_difference: str | None = None
        self._journal = Journal(folder, lease.attempt, still_owner=lease.may_decide)
        self.ledger = history.ledger
        """Everything decided so far; only `decide` changes it."""

    @property
    def segment_name(self) -> str:
        """The open segment's number; empty before the first."""
        return str(self.segment.number) if self.segment else ""

    def append(self, record: Record) -> None:
        """Keep a record; what cannot be written now is tried again."""
        self._journal.append(record)

    def emit(self, kind: str, step: int, /, **data: Any) -> Event:
        """Keep an event of now."""
        event = self._event(kind, step, data)
        self._journal.append(event)
        return event

    def emit_durably(self, kind: str, step: int, /, **data: Any) -> Event:
        """Keep an event of now on the medium before anybody relies on it, or raise LedgerError."""
        event = self._event(kind, step, data)
        try:
            self._journal.append_durably(event)
        except OSError as error:
            raise LedgerError(f"{kind} could not be written to the journal: {error}") from error
        return event

    def _event(self, kind: str, step: int, data: Mapping[str, Any]) -> Event:
        return Event(kind=kind, data=data, seconds=self.time.drain(), **self._at(step))

    def _at(self, step: int) -> dict[str, Any]:
        attempt, now = self.lease.attempt, self.clock.wall()
        return {"attempt": attempt, "segment": self.segment_name, "step": step, "time": now}

    def decide(
        self,
        kind: str,
        step: int,
        data: Mapping[str, Any],
        *,
        who: str,
        reason: str,
        from_step: int = 0,
    ) -> Decision:
        """Write a decision to the ledger, durably, before anybody acts on it; nothing may be
        applied after a LedgerError, or a NotOwner: another attempt has taken the run over.
        """
        decision = Decision(
            kind=kind, data=data, who=who, reason=reason, from_step=from_step, **self._at(step)
        )
        self.ledger = write_decision(self._journal, self.ledger, decision)
        return decision

    def decide_health(
        self, checkpoint: int, health: str, manifest: str, reason: str, step: int = 0
    ) -> None:
        """Write what is known of a checkpoint now to the ledger, at `step`; as `decide`."""
        data = {"checkpoint": checkpoint, "health": health, "manifest": manifest}
        self.decide("checkpoint-health", step, data, who="pilot", reason=reason)

    def open_segment(
        self,
        reason: str,
        settings: Recipe,
        *,
        step: int,
        draw: int,
        checkpoint: int | None,
        fingerprint: Mapping[str, Any],
        fork: bool = False,
        weights: Mapping[str, str] | None = None,
    ) -> SegmentOpening:
        """Begin the next stretch under one set of effective settings; a fork begins a major."""
        parent = self.segment
        before = recipe_from_values(parent.settings) if parent else settings
        if parent is None or fork:
            number = next_major(self.folder)
        else:
            number = next_minor(self.folder, parent.number)
        opening = SegmentOpening(
            number=number,
            parent=parent.number if parent else None,
            attempt=self.lease.attempt,
            checkpoint=checkpoint,
            step=step,
            draw=draw,
            weights=weights or {},
            reason=reason,
            difference=changed_settings(before, settings),
            settings=settings.model_dump(mode="json"),
            fingerprint=fingerprint,
            nodes=(machine()["host"],),
            opened=self.clock.wall(),
        )
        if self._source_difference is None:
            self._source_difference = git_difference()  # of the code that runs, not of later edits
        open_segment(self.folder, opening, self._source_difference)
        self.segment = opening
        self.emit(EventKind.SEGMENT_OPENED, step, reason=reason, parent=str(opening.parent or ""))
        return opening

    def decide_restart(
        self, effective: Recipe, fingerprint: Mapping[str, Any], step: int
    ) -> LedgerState:
        """Decide what a restart at `step` has changed, as if it had been asked for live; the ledger
        after it. Nothing is written where numbers come from the same, or the run is new.
        LedgerError if it could not be written.
        """
        ledger, last = self.ledger, self.history.last_segment
        if last is None:
            return ledger
        differ = changed_settings(recipe_from_values(last.settings), effective)
        # What was decided live is in the ledger already, with who decided it.
        settings = {path: pair for path, pair in differ.items() if path not in ledger.overrides}
        here = differences(last.fingerprint, fingerprint) if last.fingerprint else {}
        origins = (*NUMBERS_COME_FROM, *_PLACES)
        surroundings = {path: pair for path, pair in here.items() if path.startswith(origins)}
        # Settings decided at later steps, which the run has lost, hold from here on.
        earlier = any(change.step > step and not change.scheduled for change in ledger.changes)
        if settings or surroundings or earlier:
            data = {"settings": settings, "surroundings": surroundings}
            self.decide("restart", step, data, who=user_name(), reason="")
        return self.ledger

    def close(self) -> None:
        """Write what is held, as far as possible."""
        self._journal.close()
