"""The pilot: the loop in which a run is trained, written down, and steered.

Enters: a trainer, the logbook, the desk, signals. Leaves: how the training ended.
Never knows: how a step is made, or where lines are kept.
"""

from contextlib import suppress

from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.records import Event, StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.ledger import LedgerError
from longhaul.run.book import Book
from longhaul.run.desk import Desk
from longhaul.run.past import hours_spent
from longhaul.run.signals import StopWish
from longhaul.run.view import View
from longhaul.store.catalogue import catalogue
from longhaul.store.commit import NotOwner, remove
from longhaul.store.health import health_now
from longhaul.store.retention import to_remove
from longhaul.train.trainer import Trainer


class Pilot:
    """Flies one attempt.

    Args:
        trainer: yields what was completed.
        book: everything is written down here.
        desk: what people ask for.
        wish: what signals ask for.
        view: what a person sees.
        clock: for `train.max_hours`.
    """

    def __init__(
        self,
        trainer: Trainer,
        book: Book,
        desk: Desk,
        wish: StopWish,
        view: View,
        clock: Clock,
    ) -> None:
        self.trainer = trainer
        self.out_of_time = False
        self.saved_step: int | None = None
        """Newest step of this attempt whose checkpoint was read back."""
        self.checkpoints = book.folder.checkpoints
        self._book = book
        self._desk = desk
        self._wish = wish
        self._view = view
        self._clock = clock
        self._spent: tuple[Seconds, Seconds] | None = None

    def fly(self) -> None:
        """Train until the run is finished, somebody wants it to stop, or its time is up."""
        self._desk.answer(self.trainer)
        self._watch_the_time()
        if self._stop_wanted():
            return
        for record in self.trainer.steps():
            self.keep(record)
            self._desk.answer(self.trainer)
            self._watch_the_time()
            if self._stop_wanted():
                self.trainer.stop()

    def keep(self, record: StepRecord | Event) -> None:
        """Write a record down, show it, and do what it entails for checkpoints."""
        if isinstance(record, Event) and record.kind == "checkpoint":
            self._keep_checkpoint(record)
            if record.data["health"] in ("written", "committed"):
                return  # the ledger holds them; the journal tells when all was read back
        self._book.append(record)
        self._view.show(record)
        if isinstance(record, Event) and record.kind == "override-begins":
            segment = self._desk.open_segment(
                self.trainer, self.trainer.settings, "an override that was decided earlier begins"
            )
            self.trainer.enter(segment)

    def how_it_stopped(self) -> tuple[ExitCode, str]:
        """Exit code and reason, when it was not finished."""
        if self._wish.exit_code is not None:
            names = {ExitCode.INTERRUPTED: "interrupted", ExitCode.START_AGAIN: "preempted"}
            return self._wish.exit_code, names[self._wish.exit_code]
        return ExitCode.START_AGAIN, f"stopped: {self._desk.stop_reason}"

    def _stop_wanted(self) -> bool:
        return (
            self._wish.exit_code is not None
            or self._desk.stop_reason is not None
            or self.out_of_time
        )

    def _watch_the_time(self) -> None:
        hours = self.trainer.settings.train.max_hours
        if hours is None:
            self.out_of_time = False
            return
        now = self._clock.monotonic()
        if self._spent is None:  # summed over the whole journal, once, and only if there is a limit
            self._spent = hours_spent(self._book.folder) * 3600, now
        spent, then = self._spent
        self.out_of_time = spent + now - then >= hours * 3600

    def _keep_checkpoint(self, event: Event) -> None:
        health, manifest = event.data["health"], event.data["manifest"]
        if health == "fenced":
            raise NotOwner(
                "another attempt has taken this run over; this one ends without touching it",
                f"`longhaul log {self._book.folder.name}` shows who trains it",
            )
        if health == "damaged":
            health = "poisoned"
            self._view.say(f"WARNING: {event.data['message']}; it will not be used")
        # A health that could not be written costs a re-reading at the next start, nothing more.
        with suppress(LedgerError):
            self._book.decide(
                "checkpoint-health",
                self.trainer.position.step,
                {"checkpoint": event.step, "health": health, "manifest": manifest},
                who="pilot",
                reason=str(event.data["message"]) or health,
            )
        if health == "verified":
            self.saved_step = event.step
            self._remove_old_checkpoints()

    def _remove_old_checkpoints(self) -> None:
        keep = self.trainer.settings.checkpoint
        there = catalogue(self.checkpoints)
        health = health_now(there, self._book.ledger.state.checkpoint_health)
        for checkpoint in to_remove(
            there, health, keep_last=keep.keep_last, keep_every=keep.keep_every
        ):
            try:
                remove(checkpoint.path)
            except OSError as error:
                self._view.say(f"WARNING: {checkpoint.path} could not be removed: {error}")


def refuse_unsaved(saved_step: int | None, step: int, folder: str) -> None:
    """The end of a run that is not on disk is no end.

    Raises:
        NeedsPerson: the last checkpoint could not be saved.
    """
    if saved_step != step:
        raise NeedsPerson(
            f"training reached step {step}, but its checkpoint could not be saved in {folder}",
            "free space there and start the same command again; "
            + (f"it goes on from step {saved_step}" if saved_step else "it starts from step 0"),
        )
