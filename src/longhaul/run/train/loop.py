"""The loop in which a run is trained, written down, and steered.

Rollbacks, saves and requests yield records instead of writing them: the loop alone appends them to
the journal, shows them to the detectors, and decides.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from longhaul.config.recipe import Recipe
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.signals import StopRequest
from longhaul.core.units import Seconds
from longhaul.data.dataset import Dataset
from longhaul.diagnose.cause import Verdict
from longhaul.logbook.ledger import LedgerError
from longhaul.logbook.reading import read_journal, read_last
from longhaul.logbook.run_history import hours_spent
from longhaul.logbook.run_log import RunLog
from longhaul.recover.draft import asks_for_cause, shaped
from longhaul.recover.health_monitor import Draft, HealthMonitor
from longhaul.recover.plan import WHO, Plan
from longhaul.recover.probation import course_of
from longhaul.run.diagnose.live_cause import LiveCause
from longhaul.run.diagnose.saved_batch import SavedBatches
from longhaul.run.train.attempt import Attempt
from longhaul.run.train.rank_health import RankHealth
from longhaul.run.train.request_handler import RequestHandler
from longhaul.store.save_interval import SaveInterval
from longhaul.train.checkpoint_manager import CheckpointManager
from longhaul.train.rollback import Recovery
from longhaul.train.trainer import Trainer

_PRINTED: dict[str, str] = {
    EventKind.OPTIMIZER_SWAPPED: "optimizer: {old} → {new}, with fresh state",
    EventKind.STATE_RESET: "state reset: {what}, {rewarm_steps} steps of warm-up follow",
}
"""Events that are printed on the terminal too, beside those that a view shows."""


class TrainingLoop:
    """The loop of one attempt, in rank 0.

    `fingerprint`, of machine and software, is for the segments that are opened; `restored` is the
    step of the newest checkpoint that can be gone back to, None if there is none.
    """

    def __init__(
        self,
        attempt: Attempt,
        trainer: Trainer,
        stop_request: StopRequest,
        fingerprint: Mapping[str, Any],
        dataset: Dataset,
        restored: int | None,
    ) -> None:
        run_log, say, tiers = attempt.run_log, attempt.view.say, attempt.tiers
        self.trainer = trainer
        self.out_of_time = False
        self._run_log = run_log
        self._view = attempt.view
        self._progress = attempt.progress
        self._verification = attempt.verification
        self._stop_request = stop_request
        self._spent: tuple[Seconds, Seconds] | None = None
        self._health_monitor = _health_monitor(run_log, trainer.settings)
        self._causes = LiveCause(run_log, say, lambda: stop_request.exit_code is not None)
        self._batches = SavedBatches(run_log.folder, dataset)
        self._recovery = Recovery(run_log, trainer, fingerprint, say, tiers)
        self._request_handler = RequestHandler(
            run_log, trainer, self._recovery, say, self._health_monitor.seconds_per_step
        )
        devices = 1 if trainer.ranks is None else trainer.ranks.size
        interval = SaveInterval(lambda: _earlier_events(run_log), devices, run_log.clock)
        self.checkpoint_manager = CheckpointManager(
            run_log, trainer, self._recovery, interval, say, tiers, restored
        )
        self._rank_health = None
        if (comparison := trainer.coordinator.comparison) is not None:
            self._rank_health = RankHealth(run_log, say, trainer, comparison)

    def run(self) -> None:
        """Train until the run is finished, somebody wants it to stop, or its time is up. DataError
        if the text is not what was prepared any more; NeedsPerson if going on would do harm.
        """
        self.keep(self._request_handler.answer())
        self._watch_the_time()
        if self._stop_wanted():
            return
        self.checkpoint_manager.offer()
        self.checkpoint_manager.adjust_interval()
        for record in self.trainer.steps():
            self._append_and_observe(record)
            if self._verification is not None:
                self._verification.raise_if_wrong()
            if not self.trainer.coordinator.at_boundary:
                continue  # the other ranks are under way; a decision waits for the next boundary
            self.checkpoint_manager.refuse_if_gone()
            if self._rank_health is not None:
                self._rank_health.act()
            decision = self._decide() if isinstance(record, StepRecord) else None
            if decision is not None:
                self._apply(decision)
            self.keep(self._request_handler.answer())
            self._look_after_checkpoints()
            self._watch_the_time()
            if self._stop_wanted():
                self.trainer.stop()

    def keep(self, records: Iterable[StepRecord | Event]) -> None:
        """Append and observe what the trainer, a rollback or a request yields as it goes on."""
        for record in records:
            self._append_and_observe(record)

    def _append_and_observe(self, record: StepRecord | Event) -> None:
        if isinstance(record, Event) and not self.checkpoint_manager.take(record):
            return
        if isinstance(record, StepRecord):
            if self._progress is not None:
                self._progress.reach(record.step)
            record = replace(record, states=self._recovery.states_if_changed())
        elif record.kind == EventKind.COMPARED and self._rank_health is not None:
            record = self._rank_health.judged(record)
        self._run_log.append(record)
        self._health_monitor.enter(self.trainer.settings)
        self._view.show(record)
        self.checkpoint_manager.watch(record)
        for finding in self._health_monitor.observe(record):
            self._run_log.append(finding)
            self._view.say(f"step {finding.step:>6}  {finding.severity}: {finding.sentence}")
            first = finding.kind == "non-finite" and finding.first_step == record.step
            if first and isinstance(record, StepRecord) and record.masked:
                self._save_batch(record)
        if isinstance(record, Event) and record.kind in _PRINTED:
            self._view.say(f"step {record.step:>6}  " + _PRINTED[record.kind].format(**record.data))
        if isinstance(record, Event) and record.kind == EventKind.OVERRIDE_BEGINS:
            segment = self._recovery.open_segment(
                self.trainer.settings, "an override that was decided earlier begins"
            )
            self.trainer.enter(segment)

    def _decide(self) -> Draft | None:
        ledger = self._run_log.ledger
        for step, manifest in self._health_monitor.passed_probation(ledger):
            self.checkpoint_manager.pass_probation(step, manifest)
        draft = self._health_monitor.draft(ledger)
        if draft is None or not asks_for_cause(draft.plan, draft.situation.limits):
            return draft
        verdict = self._cause_of(draft.plan)
        return replace(draft, plan=shaped(draft.plan, verdict, draft.situation))

    def _apply(self, draft: Draft) -> None:
        trainer, plan, to = self.trainer, draft.plan, draft.plan.rollback
        if to is not None and to.where == "remote" and not self._recovery.fetch(to):
            self._health_monitor.defer(draft.findings)  # the next boundary knows what is left
            return
        step = trainer.position.step
        lag_steps = min((step - finding.step for finding in draft.findings), default=0)
        data = plan.decision_data(step) | {"lag_steps": lag_steps}
        try:
            self.keep(
                self._recovery.carry_out(
                    data, to, who=WHO, reason=plan.reason, fork=bool(plan.fallback)
                )
            )
        except LedgerError as error:
            self._view.say(f"WARNING: {error}")
            self._health_monitor.defer(draft.findings)  # the disk may have space later
            return
        self._view.say(f"step {step:>6}  decided: {plan.reason}")
        if "accept" in plan.actions:
            self._health_monitor.observe(self._run_log.emit(EventKind.DATA_CHANGED, step))
        if plan.stop:
            self._run_log.emit(EventKind.ATTEMPT_ENDED, step, reason=f"stopped: {plan.reason}")
            raise NeedsPerson(plan.reason, f"`longhaul log {self._run_log.folder.name}` shows how")

    def _look_after_checkpoints(self) -> None:
        self.checkpoint_manager.prune()
        for records in self.checkpoint_manager.pause_while_failing(self._stop_wanted):
            self.keep(records)
            if self.checkpoint_manager.failed_of:
                self.checkpoint_manager.refuse_if_gone()
                self.keep(self._request_handler.answer())
        self.checkpoint_manager.adjust_interval()

    def how_it_stopped(self) -> tuple[ExitCode, str]:
        """Exit code and reason, when it was not finished."""
        if self._stop_request.exit_code is not None:
            return self._stop_request.exit_code, self._stop_request.reason
        return ExitCode.START_AGAIN, f"stopped: {self._request_handler.stop_reason}"

    def _cause_of(self, plan: Plan) -> Verdict:
        """What led to a plan, as replays of the steps tell; looked for before anything is done."""
        self.keep(self.trainer.completed())
        states = [s for s in self._recovery.states() if s.where != "remote"]
        return self._causes.find(self.trainer, plan, self._health_monitor.line, states)

    def _save_batch(self, record: StepRecord) -> None:
        trainer = self.trainer
        try:
            path = self._batches.save(record, trainer.settings, trainer.ledger)
        except Exception as error:  # noqa: BLE001 (training does not fail for want of a copy)
            self._view.say(f"WARNING: the batch of step {record.step} could not be saved: {error}")
            return
        if path is not None:
            text = f"the masked batch is kept in {path}"
            self._run_log.emit(EventKind.BATCH_SAVED, record.step, path=path, text=text)
            self._view.say(f"step {record.step:>6}  {text}")

    def _stop_wanted(self) -> bool:
        return (
            self._stop_request.exit_code is not None
            or self._request_handler.stop_reason is not None
            or self.out_of_time
        )

    def _watch_the_time(self) -> None:
        hours = self.trainer.settings.train.max_hours
        if hours is None:
            self.out_of_time = False
            return
        now = self._run_log.clock.monotonic()
        if self._spent is None:  # summed over the whole journal, once, and only if there is a limit
            self._spent = hours_spent(self._run_log.folder) * 3600, now
        spent, then = self._spent
        self.out_of_time = spent + now - then >= hours * 3600


def _health_monitor(run_log: RunLog, settings: Recipe) -> HealthMonitor:
    """The detectors and the policy; they have seen the last records of earlier attempts."""
    history: list[Record] = []
    if run_log.history.begun:
        history = read_last(run_log.folder, HealthMonitor.records_needed(settings))
    return HealthMonitor(settings, history, course_of(_earlier_events(run_log)))


def _earlier_events(run_log: RunLog) -> Iterator[Record]:
    for record in read_journal(run_log.folder, steps=False):
        if record.attempt < run_log.lease.attempt:
            yield record
