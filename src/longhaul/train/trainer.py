"""The trainer: a generator of completed steps, which evaluates, saves and obeys decisions at step
boundaries. How many processes train together, and what passes between them, its coordinator knows.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from longhaul.checkpoint.capture import PartsFor, capture
from longhaul.config.data import BatchStage
from longhaul.config.recipe import Recipe
from longhaul.core.errors import LonghaulError
from longhaul.core.events import EventKind
from longhaul.core.faults import Point, point
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.data.batches import BatchRequest
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.optim.optimizer import LiveSettings
from longhaul.store.save_interval import UNMEASURED_STEPS
from longhaul.train import orders
from longhaul.train.borrowed_step import BorrowedStep, borrow_step, return_step
from longhaul.train.coordinator import Coordinator
from longhaul.train.drain import Drain, complete
from longhaul.train.effective import (
    EffectiveSettings,
    Occurrence,
    next_rate,
    parts_for,
    put_in_force,
    warming_up,
)
from longhaul.train.evaluation import Evaluator
from longhaul.train.parts import Identity, Parts
from longhaul.train.sampling import write_sample
from longhaul.train.state import Position, training_state


class Trainer:
    """Makes steps until the run is done or a stop is ordered, by the recipe with the ledger on top.

    What there was to restore is in the `parts` already. Without a coordinator one process trains.
    """

    def __init__(
        self,
        recipe: Recipe,
        ledger: LedgerState,
        parts: Parts,
        identity: Identity,
        coordinator: Coordinator | None = None,
    ) -> None:
        self.coordinator = Coordinator() if coordinator is None else coordinator
        self.ledger = ledger
        self.identity = identity
        self._recipe = recipe
        self._effective = EffectiveSettings(recipe, ledger)
        self._parts = parts
        parts.batches.follow(ledger.mixture_before)
        self.training_step = parts.step
        self.ranks = parts.ranks
        self.snapshots = parts.snapshots
        self._evaluator = Evaluator(parts)
        self._drain = Drain(parts.step.device, parts.time_buckets)
        parts.step.alive = parts.time_buckets.alive
        self._to_report: deque[Occurrence] = deque()
        self._stopping = False
        self._went_back = False
        self._save_every = UNMEASURED_STEPS
        self._obey()

    @property
    def position(self) -> Position:
        """Where the run stands."""
        return self._parts.progress.position

    @property
    def settings(self) -> Recipe:
        """Effective settings of the next step."""
        return self._effective.at(self.position.step)

    @property
    def save_interval(self) -> int:
        """Steps between saves."""
        asked = self.settings.checkpoint.interval_steps
        return self._save_every if asked == "auto" else asked

    @property
    def finished(self) -> bool:
        """Every step that the settings ask for has been made."""
        total = self.settings.total_steps()
        return total is not None and self.position.step >= total

    def steps(self) -> Iterator[StepRecord | Event]:
        """Train, yielding what was completed; decisions may be applied between any two records."""
        self.coordinator.begin()
        self.snapshot()
        while not (self.finished or self._stopping):
            yield from self._news()
            self._step()
            settings = self.settings
            if comparison := self.coordinator.comparison:
                comparison.exchange_paces(self.position.step)
            # What is due is done after all records are taken: they may be a reason to go back.
            due = any(map(self._due, self._pauses())) or self.finished
            yield from self.coordinator.boundary(self.completed(wait=due))
            if comparison is not None:  # before a save, which would keep what is wrong
                for what in comparison.due(self.settings.monitor, self._due):
                    yield from self.compare(what)
            if self.coordinator.keeps_run:
                yield from self._evaluate_save_snapshot(settings)
            yield from self.saved()
        yield from self.completed()
        yield from self._reports()
        self.coordinator.end()

    def _evaluate_save_snapshot(self, settings: Recipe) -> Iterator[StepRecord | Event]:
        evaluation, checkpoint = settings.evaluation, settings.checkpoint
        if self._due(evaluation.interval_steps) and not self._stopping:
            yield from self.evaluate(evaluation.tokens)
            if settings.sample.at_evaluations and not (self._stopping or self._went_back):
                yield from self.sample()
        if self._due(self.save_interval) and not self._stopping:
            yield from self.save()
        if self._due(checkpoint.snapshot_interval_steps):
            self.snapshot()

    def _pauses(self) -> tuple[int, ...]:
        """Intervals in steps of what waits for the device: its time is booked apart from steps."""
        settings, comparison = self.settings, self.coordinator.comparison
        compared = () if comparison is None else comparison.intervals(settings.monitor)
        return settings.evaluation.interval_steps, self.save_interval, *compared

    def apply(self, decision: Decision) -> None:
        """Obey a decision that the ledger already holds, from the next step on; on all ranks."""
        self.coordinator.order(orders.Apply(decision))
        self.ledger = fold(self.ledger, decision)
        self._effective = EffectiveSettings(self._recipe, self.ledger)
        self._obey()
        self.coordinator.state_changed()

    def snapshot(self) -> bool:
        """Keep the training state in the host's memory; False if too little of it is granted."""
        parts, position = self._parts, self.position
        wanted = self.settings.checkpoint.snapshot_interval_steps
        if not (wanted and self.coordinator.keeps_run):
            return False
        with parts.time_buckets.track("checkpoint_stall"):
            state = capture(training_state(parts.step, parts.progress))
            return parts.snapshots.take(position.step, position.draw, state)

    def roll_back(
        self, restore: Callable[[PartsFor], object], order: orders.Order | None = None
    ) -> None:
        """Go back to an earlier training state, at a step boundary; the ledger is not touched.

        Records of steps already made come first (`completed`), else a ValueError; the decision that
        asked for this is applied afterwards, so that it governs the state that was gone back to.
        `restore` fills the parts that suit a state's facts; by the order other ranks do the same.
        """
        if self._drain:
            raise ValueError("steps are under way; take their records from completed() first")
        self.coordinator.order(order or orders.RollBack())
        parts, reached = self._parts, self.position.step
        with parts.time_buckets.track("restart"):
            restore(lambda facts: parts_for(parts.step, parts.progress, facts))
            parts.step.optimizer.clear_gradients()
        there = self.position.step
        parts.snapshots.drop(lambda kept: kept.step > there)
        done_before = max(self.identity.done_before, reached)
        self.identity = replace(self.identity, done_before=done_before)
        self._went_back = True  # what was due at the boundary that was left is due no more
        self.coordinator.state_changed()

    def roll_back_in_memory(self, step: int) -> None:
        """Go back to the snapshot of `step`; a `DamagedSnapshot` leaves everything as it was."""
        self.roll_back(
            partial(self._parts.snapshots.hand_back, step), orders.RollBackInMemory(step)
        )

    def borrow_step(self, copies: int) -> BorrowedStep:
        """The live step, to make other steps with; nothing else is done before `return_step`. A
        ValueError if there are records that nobody has taken yet; a MemoryError if the host has no
        room for so many copies of the training state at once; OneProcessOnly if there are replicas.
        """
        copies = self.coordinator.copies_on_host(copies)
        if self._drain:
            raise ValueError("steps are under way; take their records from completed() first")
        return borrow_step(self._parts, copies)

    def return_step(self, borrowed_step: BorrowedStep) -> None:
        """Go on, bit by bit, as if the step had not been lent."""
        return_step(borrowed_step, self._parts)
        self._obey()

    def enter(self, segment: str) -> None:
        """Write records under another segment from now on."""
        self.identity = replace(self.identity, segment=segment)

    def save_every(self, steps: int) -> None:
        """What an interval between saves that is `auto` shall be from now on."""
        self.coordinator.order(orders.SaveEvery(steps))
        self._save_every = steps

    def stop(self) -> None:
        """End `steps()` at the next boundary."""
        self.coordinator.order(orders.Stop())
        self._stopping = True

    def evaluate(self, most_tokens: int | None) -> Iterator[StepRecord | Event]:
        """Measure validation loss; None reads the whole split."""
        self.coordinator.order_unless_due(orders.Evaluate(most_tokens))
        yield from self.completed()
        yield self._event(EventKind.EVALUATION_STARTED)
        with self._parts.time_buckets.track("evaluation"):
            figures = self._evaluator.figures(self.settings, most_tokens)
        yield from self.coordinator.boundary([self._event(EventKind.EVALUATION, **figures)])

    def sample(self) -> Iterator[StepRecord | Event]:
        """Write the text that the recipe asks for; nothing if it asks for none."""
        if self.settings.sample.tokens == 0:
            return
        self.coordinator.order_unless_due(orders.WriteSample())
        with self._parts.time_buckets.track("evaluation"):
            try:
                written = {"text": write_sample(self._parts, self.settings)}
            except LonghaulError as error:  # a prompt must not keep a run from its end
                written = {"text": "", "message": str(error)}
        yield from self.coordinator.boundary([self._event(EventKind.SAMPLE, **written)])

    def save(self) -> Iterator[StepRecord | Event]:
        """Hand the training state to the saver, which writes it while training goes on."""
        self.coordinator.order_unless_due(orders.Save())
        yield from self.completed()
        yield self._event(EventKind.SAVE_STARTED)
        parts = self._parts
        with parts.time_buckets.track("checkpoint_stall"):
            state = capture(training_state(parts.step, parts.progress))
            at_rest = self.finished or self._stopping
            parts.saver.save(self.position.step, state, parts.time_buckets.alive, at_rest)
        yield from self.saved()

    def saved(self, wait: bool = False) -> Iterator[Event]:
        """What became of earlier saves."""
        if wait:
            with self._parts.time_buckets.track("checkpoint_stall"):
                self._parts.saver.wait(self._parts.time_buckets.alive)
        for change in self._parts.saver.poll():
            kind = EventKind.CHECKPOINT_FAILED if change.kind == "failed" else EventKind.CHECKPOINT
            # Without seconds: not every one of these is kept, and what it carried would be lost.
            yield replace(self._event(kind, False, **change.data), step=change.step)

    def compare(self, what: orders.Compares) -> Iterator[StepRecord | Event]:
        """Compare what ranks should have alike; nothing where there is nobody to compare with."""
        self.coordinator.order_unless_due(orders.Compare(what))
        parts, comparison = self._parts, self.coordinator.comparison
        if comparison is None:
            return
        began, position = parts.clock.monotonic(), self.position
        with parts.time_buckets.track("detection"):
            settings = self.settings
            request = self._request(position.draw, settings.batch_at(position.step))
            found = comparison.compare(what, settings, position.step, request)
        if found:
            took = round(parts.clock.monotonic() - began, 6)
            event = self._event(EventKind.COMPARED, what=what, took_s=took)
            yield from self.coordinator.boundary([event])

    def _step(self) -> None:
        point(Point.BEFORE_STEP, self, step=self.position.step + 1)
        self._went_back = False
        settings, parts, position = self.settings, self._parts, self.position
        stage = settings.batch_at(position.step)
        with parts.time_buckets.track("data_wait"):
            # Read ahead only while a device computes: on the CPU the reader's thread would take the
            # cores from the step itself, and reading costs less than that.
            on_cpu = parts.step.device.type == "cpu"
            following = None if on_cpu else self._request_after(position, stage)
            batch = parts.batches.read(self._request(position.draw, stage), following)
        gauge_interval = settings.monitor.gauge_interval_steps
        read_gauges = gauge_interval > 0 and (position.step + 1) % gauge_interval == 0
        rate = next_rate(settings, parts.progress)
        window = settings.model.window_at(position.step)
        parts.step.settle(settings.model, position.step)
        redone = position.step < self.identity.done_before
        # Stays open until something else is booked: waiting for the device is training too.
        parts.time_buckets.switch("redone" if redone else "training")
        at_once = settings.micro_sequences(position.step)
        sequences, length = batch.tokens_BT.shape
        compiles = parts.step.passes.forms.is_new(
            min(at_once, sequences), length, window, read_gauges
        )
        self._drain.begin(compiles)
        with parts.time_buckets.track("compile") if compiles else nullcontext():
            figures = parts.step(batch, at_once, rate, read_gauges, window)
        parts.progress.position = Position(
            step=position.step + 1,
            draw=batch.next_draw,
            tokens=position.tokens + batch.num_targets,
        )
        record = StepRecord(
            attempt=self.identity.attempt,
            segment=self.identity.segment,
            step=self.position.step,
            draw=batch.draw,
            next_draw=batch.next_draw,
            time=0.0,
            loss=float("nan"),
            gradient_norm=float("nan"),
            learning_rate=rate,
            sequences=stage.sequences,
            sequence_length=stage.sequence_length,
            mixture_stage=settings.data.stage_at(batch.draw),
            attention_window=window,
            warmup=warming_up(settings, position.step)
            or parts.progress.rewarm.factor(position.step) < 1,
            evaluation_due=self._due(settings.evaluation.interval_steps),
            save_due=self._due(self.save_interval),
            redone=redone,
        )
        self._drain.push(record, figures)
        counts = parts.step.passes.compilations
        if counts is not None and (compiled := counts.drain()) is not None:
            self._to_report.append((EventKind.COMPILED, compiled.data))

    def completed(self, wait: bool = True) -> Iterator[StepRecord]:
        """Records of the steps that the device has made; waits for all that are under way."""
        for arrived in self._drain.ready(wait):
            now = self._parts.clock.wall()
            record = complete(arrived, self._parts.step, now, self.position.step)
            self.coordinator.completed(record)
            yield record

    def _request(self, draw: int, stage: BatchStage) -> BatchRequest:
        return BatchRequest(draw, stage.sequences, stage.sequence_length, self.ledger.skips)

    def _request_after(self, position: Position, stage: BatchStage) -> BatchRequest:
        """The likely next request; skips and curricula may prove it wrong, at no harm."""
        blocks = stage.sequences * stage.sequence_length // self._recipe.block_length()
        following = self.settings.batch_at(position.step + 1)
        return self._request(position.draw + blocks, following)

    def _due(self, interval: int) -> bool:
        # The last save and evaluation, over the whole split, are made in run/train/finish.py.
        due = interval > 0 and self.position.step % interval == 0 and not self.finished
        return due and not self._went_back

    def _event(self, kind: str, track: bool = True, /, **data: object) -> Event:
        return Event(
            kind=kind,
            attempt=self.identity.attempt,
            segment=self.identity.segment,
            step=self.position.step,
            time=self._parts.clock.wall(),
            seconds=self._parts.time_buckets.drain() if track else {},
            data=data,
        )

    def live_settings(self) -> LiveSettings:
        """Settings read back from where the update rule itself reads them."""
        return self._parts.step.live_settings()

    def _news(self) -> Iterator[Event]:
        """What an override from this step on, and obeying the ledger, did to the training state."""
        if self.settings is not self._obeyed:
            self._obey()
            yield self._event(EventKind.OVERRIDE_BEGINS)
        yield from self._reports()

    def _reports(self) -> Iterator[Event]:
        while self._to_report:
            kind, data = self._to_report.popleft()
            yield self._event(kind, **data)

    def _obey(self) -> None:
        """Put the settings in force into the live optimizer, and read them back."""
        self._obeyed, parts = self.settings, self._parts
        self._to_report += put_in_force(
            self._obeyed, self.ledger.resets, parts.step, parts.progress
        )
