"""The checkpoint manager: which checkpoints are sound, how many stay, where else copies lie.

It records healths, removes and uploads checkpoints, and waits while nothing can be saved.
Scheduled saves are started by `train/trainer.py`.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

from longhaul.core.errors import NeedsPerson, NotOwner
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Event, StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.folder import why_paused
from longhaul.logbook.lease import GONE_S
from longhaul.logbook.ledger import LedgerError, LedgerState
from longhaul.logbook.run_log import RunLog
from longhaul.store.catalogue import catalogue, checkpoint_path, health_now, remove
from longhaul.store.retention import to_remove
from longhaul.store.save_interval import SaveInterval
from longhaul.store.tiers import Tiers
from longhaul.train.rollback import Recovery
from longhaul.train.trainer import Trainer

_SETTLE_S: Seconds = 1.0
_FAILED_BEFORE_PAUSE = 2
"""One save that fails costs an interval at most; the second in a row is no accident."""
_RETRY_S: Seconds = 5.0
_LONGEST_RETRY_S: Seconds = 60.0
"""The pause between two tries doubles up to here: they copy the state, and fill the journal."""


@dataclass(eq=False)
class CheckpointManager:
    """Keeps the checkpoints of one attempt."""

    _run_log: RunLog
    _trainer: Trainer
    _recovery: Recovery
    _interval: SaveInterval
    _say: Say
    _tiers: Tiers
    _saved_step: int | None
    """At first that of the checkpoint that the trainer goes on from; None if from none."""
    _prune_due: bool = field(default=False, init=False)
    _failed: int = field(default=0, init=False)
    """Saves in a row that failed, for whatever reason."""
    _failure: Mapping[str, Any] = field(default_factory=dict, init=False)
    """Data of the last of them."""

    def __post_init__(self) -> None:
        self.folder = self._run_log.folder.checkpoints
        self._decided = _decided(self._run_log.ledger)

    @property
    def saved_step(self) -> int | None:
        """Newest step whose checkpoint was read back; None if it was gone back behind since."""
        health = self._run_log.ledger.checkpoint_health.get(self._saved_step or -1)
        poisoned = health is not None and health.health == "poisoned"
        return None if poisoned else self._saved_step

    @property
    def failed_of(self) -> str:
        """What the last save has failed of; empty if it has not."""
        return str(self._failure["message"]) if self._failed else ""

    def take(self, event: Event) -> bool:
        """Heed news of a checkpoint; whether it is journalled. NotOwner if another owns the run."""
        if event.kind == EventKind.CHECKPOINT_FAILED or event.data.get("health") == "damaged":
            self._failed, self._failure = self._failed + 1, event.data
        if event.kind != EventKind.CHECKPOINT:
            return True
        health, manifest = event.data["health"], event.data["manifest"]
        if health == "fenced" and self._run_log.lease.gone():
            self._say(f"WARNING: {event.data['message']}")
            return False  # the folder may come back; else `refuse_if_gone` ends the run
        if health == "fenced":
            raise NotOwner(
                "another attempt has taken this run over; this one ends without touching it",
                f"`longhaul log {self._run_log.folder.name}` shows who trains it",
            )
        if health == "damaged":
            health = "poisoned"
            self._say(f"WARNING: {event.data['message']}; it will not be used")
        self._record(event.step, health, manifest, str(event.data["message"]) or health)
        if health == "verified":
            self._saved_step, self._failed, self._prune_due = event.step, 0, True
            self.offer()
        self._recovery.look_again()
        # The ledger holds the first two healths; the journal tells when all was read back.
        return health not in ("written", "committed")

    def refuse_if_gone(self, after_s: Seconds = GONE_S) -> None:
        """RunGone, with what is left of the run, if its folder was away for `after_s`."""
        step = self._trainer.position.step
        self._run_log.lease.refuse_if_gone(
            step, lambda: max((s.step for s in self._tiers.states()), default=None), after_s
        )

    def pass_probation(self, step: int, manifest: str) -> None:
        """Training has stayed healthy after the checkpoint of a step."""
        if checkpoint_path(self.folder, step).exists():
            reason = "training has stayed healthy for a probation after it"
            self._record(step, "good", manifest, reason)

    def prune(self) -> None:
        """Remove what is kept no longer, once another checkpoint was read back.

        Only between decisions: one that waits for a save in progress must still find the state
        that it goes back to.
        """
        if not self._prune_due:
            return
        self._prune_due = False
        keep = self._trainer.settings.checkpoint
        there = catalogue(self.folder)
        health = health_now(there, self._run_log.ledger.checkpoint_health)
        snapshots = self._trainer.snapshots.kept()
        for checkpoint in to_remove(
            there,
            health,
            keep_last=keep.keep_last,
            keep_every=keep.keep_every,
            oldest_snapshot=snapshots[0].step if snapshots else None,
        ):
            if checkpoint.step in self._tiers.pending:
                continue  # it goes after the next save that finds it sent
            try:
                remove(checkpoint.path)
            except OSError as error:
                self._say(f"WARNING: {checkpoint.path} could not be removed: {error}")
        self._recovery.look_again()

    def offer(self) -> None:
        """Let other tiers have what they lack."""
        self._decided = _decided(self._run_log.ledger)
        self._tiers.offer()

    def watch(self, record: StepRecord | Event) -> None:
        """Learn what saves and steps cost, and write down what became of transfers."""
        self._interval.observe(record)
        if isinstance(record, StepRecord):
            self._tiers.observe(record)
            # Decisions must not wait for the next checkpoint: a machine that is lost before would
            # bring a learning rate back that one has lowered.
            now = _decided(self._run_log.ledger)
            if any(part is not known for part, known in zip(now, self._decided, strict=True)):
                self._decided = now
                self._tiers.offer_run_log()
        self._emit_news()

    def adjust_interval(self) -> None:
        """Save as often as costs and failures suggest, if that is left to us."""
        interval = self._interval.changed(self._trainer.settings)
        if interval is not None:
            self._trainer.save_every(interval.steps)
            step = self._trainer.position.step
            self._run_log.emit(
                EventKind.SAVE_INTERVAL, step, steps=interval.steps, reason=interval.reason
            )

    def pause_while_failing(
        self, stop_wanted: Callable[[], bool]
    ) -> Iterator[tuple[StepRecord | Event, ...]]:
        """Where nothing can be saved any more, wait rather than train into the void. Yields the
        records of each further save, once it is over; whoever takes them may take his time.
        NeedsPerson if `checkpoint.retry_minutes` have passed, and it is not a full disk.
        """
        if self._failed < _FAILED_BEFORE_PAUSE:
            return
        trainer, step = self._trainer, self._trainer.position.step
        why, way_out = self._why_unsaved()
        self._run_log.emit(EventKind.PAUSED, step, reason=why)
        self._say(f"PAUSED at step {step}: {why}\n  → {way_out}")
        waited_s, pause_s, last = 0.0, _RETRY_S, self._run_log.clock.monotonic()
        while self._failed and not stop_wanted():
            if waited_s >= trainer.settings.checkpoint.retry_minutes * 60:
                self._give_up(step, why)
            with self._run_log.time.track("checkpoint_stall"):
                time.sleep(pause_s)
            yield (*trainer.save(), *trainer.saved(wait=True))
            before, last = last, self._run_log.clock.monotonic()
            if not self._failure.get("full"):
                waited_s, pause_s = waited_s + last - before, min(2 * pause_s, _LONGEST_RETRY_S)
        if not self._failed:
            what = "there is space again" if self._failure.get("full") else "it can be saved again"
            self._run_log.emit(EventKind.RESUMED, step, reason=what)
            self._say(f"{what}: training goes on from step {step}")

    def _why_unsaved(self) -> tuple[str, str]:
        """Why nothing can be saved, and the way out."""
        if self._failure.get("full"):
            why = why_paused(self.folder, self.saved_step)
            return why, "free space there: training then goes on by itself"
        saved = "none" if self.saved_step is None else f"step {self.saved_step}"
        minutes = self._trainer.settings.checkpoint.retry_minutes
        return (
            f"{self._failed} saves in a row have failed ({self._failure['message']}); the newest "
            f"checkpoint is {saved}",
            f"mend {self.folder}: training then goes on by itself; after {minutes:g} minutes "
            "(checkpoint.retry_minutes) it stops",
        )

    def _give_up(self, step: int, why: str) -> NoReturn:
        saved = self.saved_step
        kept = f"{checkpoint_path(self.folder, saved or 0)} is kept, and {step - (saved or 0)}"
        lost = f"{kept} steps are made again" if saved else "the run begins again from step 0"
        self._run_log.emit(EventKind.ATTEMPT_ENDED, step, reason=f"stopped: {why}")
        raise NeedsPerson(
            f"training stands at step {step}, and nothing could be saved for "
            f"{self._trainer.settings.checkpoint.retry_minutes:g} minutes "
            f"(checkpoint.retry_minutes): {self._failure['message']}",
            f"mend {self.folder} and start the same command again; {lost}",
        )

    def settle(self, stop_wanted: Callable[[], bool]) -> None:
        """Of a finished run: wait for what is still being sent elsewhere, unless told to stop."""
        self._tiers.offer_run_log()  # with the run's own end in it
        while not self._tiers.settled() and not stop_wanted():
            with self._run_log.time.track("checkpoint_stall"):  # each one is a sign of life
                self._tiers.settle(_SETTLE_S)
        self._emit_news()
        if left := self._tiers.unsent():
            self._say(f"WARNING: {left}")

    def _emit_news(self) -> None:
        for kind, step, data in self._tiers.news():
            self._run_log.emit(kind, step or self._trainer.position.step, **data)
            if message := data.get("message"):
                self._say(f"WARNING: {message}")

    def _record(self, checkpoint: int, health: str, manifest: str, reason: str) -> None:
        # A health that could not be written costs a re-reading at the next start, nothing more.
        with suppress(LedgerError):
            step = self._trainer.position.step
            self._run_log.decide_health(checkpoint, health, manifest, reason, step)


def _decided(ledger: LedgerState) -> tuple[object, ...]:
    """Parts of a ledger that are other objects once anything but a health was decided."""
    return (ledger.overrides, ledger.withdrawn, ledger.skips, ledger.recoveries, ledger.resets,
            ledger.changes)  # fmt: skip
