"""The pilot: the loop in which a run is trained, written down, and steered.

Enters: a trainer, the logbook, the desk, signals. Leaves: how the training ended.
Never knows: how a step is made, or where lines are kept.
"""

import time
from contextlib import suppress
from functools import partial

from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.records import Event, StepRecord
from longhaul.core.units import Seconds
from longhaul.diagnose.cause import Verdict
from longhaul.logbook.ledger import LedgerError
from longhaul.recover.plan import WHO, Plan
from longhaul.run.attempt import Attempt
from longhaul.run.desk import Desk
from longhaul.run.judgement import Judgement
from longhaul.run.live_cause import LiveCause
from longhaul.run.past import hours_spent
from longhaul.run.recovery import Recovery
from longhaul.run.save_interval import SaveInterval
from longhaul.run.signals import StopWish
from longhaul.store.catalogue import catalogue
from longhaul.store.commit import NotOwner, checkpoint_path, remove
from longhaul.store.health import health_now
from longhaul.store.retention import to_remove
from longhaul.train.trainer import Trainer

_SETTLE_S: Seconds = 1.0
_FULL_BEFORE_PAUSE = 2
"""One save that fails costs an interval at most; the second in a row is no accident."""
_RETRY_FULL_S: Seconds = 5.0
_SAID = {
    "optimizer-swapped": "optimizer: {old} → {new}, with fresh state",
    "state-reset": "state reset: {what}, {rewarm_steps} steps of warm-up follow",
}
"""Events that people are told of, beside those that a view shows."""


class Pilot:
    """Flies one attempt.

    Args:
        attempt: everything is written into its book and shown in its view.
        trainer: yields what was completed.
        judgement: sees every record, and says what is to be done.
        recovery: carries out what is decided.
        desk: what people ask for.
        wish: what signals ask for.
        interval: chooses how often to save, where that is left to it.
        restored: step of the checkpoint that the trainer goes on from; None if from none.
    """

    def __init__(
        self,
        attempt: Attempt,
        trainer: Trainer,
        judgement: Judgement,
        recovery: Recovery,
        desk: Desk,
        wish: StopWish,
        interval: SaveInterval,
        restored: int | None = None,
    ) -> None:
        self.trainer = trainer
        self.out_of_time = False
        self.checkpoints = attempt.folder.checkpoints
        self._book = attempt.book
        self._view = attempt.view
        self._progress = attempt.progress
        self._clock = attempt.clock
        self._judgement = judgement
        self._recovery = recovery
        self._causes = LiveCause(attempt.book, attempt.view.say, lambda: wish.exit_code is not None)
        self._desk = desk
        self._wish = wish
        self._tiers = attempt.tiers
        self._interval = interval
        self._saved_step = restored
        self._found_full = 0
        """Saves in a row that failed because the disk is full."""
        self._spent: tuple[Seconds, Seconds] | None = None

    @property
    def saved_step(self) -> int | None:
        """Newest step whose checkpoint was read back; None if it was gone back behind since."""
        health = self._book.ledger.state.checkpoint_health.get(self._saved_step or -1)
        poisoned = health is not None and health.health == "poisoned"
        return None if poisoned else self._saved_step

    def fly(self) -> None:
        """Train until the run is finished, somebody wants it to stop, or its time is up."""
        self._desk.answer(self.trainer, self.keep)
        self._watch_the_time()
        if self._stop_wanted():
            return
        self._offer()
        self._adjust_interval()
        for record in self.trainer.steps():
            self.keep(record)
            if not self.trainer.at_border:
                continue  # the other ranks are under way; what this asks for comes up again
            self._steer()
            self._desk.answer(self.trainer, self.keep)
            self._pause_while_full()
            self._adjust_interval()
            self._watch_the_time()
            if self._stop_wanted():
                self.trainer.stop()

    def keep(self, record: StepRecord | Event) -> None:
        """Write a record down, show it, and do what it entails for checkpoints."""
        if isinstance(record, Event) and record.kind == "checkpoint":
            self._keep_checkpoint(record)
            if record.data["health"] in ("written", "committed"):
                return  # the ledger holds them; the journal tells when all was read back
        if isinstance(record, Event) and record.kind == "checkpoint-failed":
            self._found_full = self._found_full + 1 if record.data.get("full") else 0
        if isinstance(record, StepRecord) and self._progress is not None:
            self._progress.reach(record.step)
        self._book.append(record)
        self._view.show(record)
        self._interval.observe(record)
        self._tell_of_tiers(record)
        for finding in self._judgement.observe(record):
            self._book.append(finding)
            self._view.say(f"step {finding.step:>6}  {finding.severity}: {finding.sentence}")
        if isinstance(record, Event) and record.kind in _SAID:
            self._view.say(f"step {record.step:>6}  " + _SAID[record.kind].format(**record.data))
        if isinstance(record, Event) and record.kind == "override-begins":
            segment = self._recovery.open_segment(
                self.trainer, self.trainer.settings, "an override that was decided earlier begins"
            )
            self.trainer.enter(segment)

    def settle_tiers(self) -> None:
        """Of a finished run: wait for what is still being sent elsewhere, unless told to stop."""
        if self._tiers is None:
            return
        while not self._tiers.settled() and self._wish.exit_code is None:
            with self._book.time.booked("checkpoint_stall"):  # each one is a sign of life
                self._tiers.settle(_SETTLE_S)
        self._tell_of_tiers()
        if left := self._tiers.unsent():
            self._view.say(f"WARNING: {left}")

    def how_it_stopped(self) -> tuple[ExitCode, str]:
        """Exit code and reason, when it was not finished."""
        if self._wish.exit_code is not None:
            names = {ExitCode.INTERRUPTED: "interrupted", ExitCode.START_AGAIN: "preempted"}
            return self._wish.exit_code, names[self._wish.exit_code]
        return ExitCode.START_AGAIN, f"stopped: {self._desk.stop_reason}"

    def _steer(self) -> None:
        """Do what the judgement asks for at this border, the decision first."""
        trainer, ledger = self.trainer, self._book.ledger.state
        for step, manifest in self._judgement.passed_probation(trainer.settings, ledger):
            if checkpoint_path(self.checkpoints, step).exists():
                reason = "training has stayed healthy for a probation after it"
                self._record_health(step, "good", manifest, reason)
        findings = self._judgement.take()
        plan = self._judgement.decide(
            findings,
            trainer.settings,
            trainer.position,
            ledger,
            partial(self._recovery.states, trainer),
            self._cause_of,
        )
        if plan is None:
            return
        step = trainer.position.step
        lag_steps = min((step - finding.step for finding in findings), default=0)
        data = plan.decision_data(step) | {"lag_steps": lag_steps}
        try:
            self._recovery.carry_out(
                trainer,
                data,
                plan.rollback,
                keep=self.keep,
                who=WHO,
                reason=plan.reason,
                fork=bool(plan.fallback),
            )
        except LedgerError as error:
            self._view.say(f"WARNING: {error}")
            self._judgement.defer(findings)  # the disk may have space later
            return
        self._view.say(f"step {step:>6}  decided: {plan.reason}")
        if plan.stop:
            self._book.tell("attempt-ended", step, reason=f"stopped: {plan.reason}")
            raise NeedsPerson(plan.reason, f"`longhaul log {self._book.folder.name}` shows how")

    def _cause_of(self, plan: Plan) -> Verdict:
        """Cause before cure: what led to a plan, as replays of the steps tell."""
        for record in self.trainer.completed():
            self.keep(record)
        states = self._recovery.states(self.trainer)
        return self._causes.find(self.trainer, plan, self._judgement.line, states)

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
        self._record_health(event.step, health, manifest, str(event.data["message"]) or health)
        if health == "verified":
            self._saved_step, self._found_full = event.step, 0
            self._offer()
            self._remove_old_checkpoints()

    def _record_health(self, checkpoint: int, health: str, manifest: str, reason: str) -> None:
        # A health that could not be written costs a re-reading at the next start, nothing more.
        with suppress(LedgerError):
            self._book.decide(
                "checkpoint-health",
                self.trainer.position.step,
                {"checkpoint": checkpoint, "health": health, "manifest": manifest},
                who="pilot",
                reason=reason,
            )

    def _offer(self) -> None:
        """Let other tiers have what they lack."""
        if self._tiers is not None:
            self._tiers.offer(self._book.ledger.state.checkpoint_health)

    def _tell_of_tiers(self, record: StepRecord | Event | None = None) -> None:
        """Let transfers know how long steps take, and write down what became of them."""
        if self._tiers is None:
            return
        if isinstance(record, StepRecord):
            self._tiers.observe(record)
        for kind, step, data in self._tiers.news():
            self._book.tell(kind, step, **data)
            if message := data.get("message"):
                self._view.say(f"WARNING: {message}")

    def _pause_while_full(self) -> None:
        """Where nothing can be saved any more, wait for space rather than train into the void."""
        if self._found_full < _FULL_BEFORE_PAUSE:
            return
        trainer, step = self.trainer, self.trainer.position.step
        saved = "none" if self._saved_step is None else f"step {self._saved_step}"
        why = (
            f"the disk of {self.checkpoints} is full and nothing on it can be done without; the "
            f"newest checkpoint is {saved}"
        )
        self._book.tell("paused", step, reason=why)
        self._view.say(
            f"PAUSED at step {step}: {why}\n  → free space there: training then goes on by itself"
        )
        while self._found_full and not self._stop_wanted():
            with self._book.time.booked("checkpoint_stall"):
                time.sleep(_RETRY_FULL_S)
            for record in (*trainer.save(), *trainer.saved(wait=True)):
                self.keep(record)
            self._desk.answer(trainer, self.keep)
        if not self._found_full:
            self._book.tell("resumed", step, reason="there is space again")
            self._view.say(f"there is space again: training goes on from step {step}")

    def _adjust_interval(self) -> None:
        """Save as often as costs and failures suggest, if that is left to us."""
        interval = self._interval.changed(self.trainer.settings)
        if interval is not None:
            self.trainer.save_every(interval.steps)
            step = self.trainer.position.step
            self._book.tell("save-interval", step, steps=interval.steps, reason=interval.reason)

    def _remove_old_checkpoints(self) -> None:
        keep = self.trainer.settings.checkpoint
        there = catalogue(self.checkpoints)
        health = health_now(there, self._book.ledger.state.checkpoint_health)
        pending = frozenset[int]() if self._tiers is None else self._tiers.pending
        for checkpoint in to_remove(
            there, health, keep_last=keep.keep_last, keep_every=keep.keep_every
        ):
            if checkpoint.step in pending:
                continue  # it goes after the next save that finds it sent
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
