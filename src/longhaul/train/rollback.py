"""Carrying out a recovery: the decision first, then the rollback, then the settings it brings, in
a segment of its own with its reason.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from longhaul.checkpoint.capture import PartsFor
from longhaul.checkpoint.loader import read_facts
from longhaul.checkpoint.restore import restore_newest
from longhaul.checkpoint.snapshots import DamagedSnapshot
from longhaul.config.recipe import Recipe
from longhaul.core.errors import NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Event, Safe, StepRecord
from longhaul.logbook.run_log import RunLog
from longhaul.logbook.segments import SegmentTaken
from longhaul.parallel.control import patiently
from longhaul.store.catalogue import Checkpoint, usable
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.tiers import Tiers
from longhaul.train.orders import WaitForStore
from longhaul.train.trainer import Trainer

Answer = TypeVar("Answer")


@dataclass(eq=False)
class Recovery:
    """Carries out what was decided, at a step boundary."""

    _run_log: RunLog
    _trainer: Trainer
    _fingerprint: Mapping[str, Any]
    """Of this attempt, for the segments that are opened."""
    _say: Say
    _tiers: Tiers
    _not_to_be_had: set[Safe] = field(default_factory=set, init=False)
    """States elsewhere that could not be fetched, until the tiers are asked again."""
    _draws: dict[str, int] = field(default_factory=dict, init=False)
    _on_disk: tuple[Safe, ...] | None = field(default=None, init=False)
    _recorded: tuple[Safe, ...] | None = field(default=None, init=False)

    def states(self) -> tuple[Safe, ...]:
        """Every sound training state that can be gone back to, by rising step.

        Those in memory, and the checkpoints that are not poisoned, here or in a tier that is known
        to have them; where there are several at one step the one that is nearest.
        """
        if self._on_disk is None:
            self._on_disk = tuple(
                Safe(checkpoint.step, draw, "disk")
                for checkpoint in self._checkpoints()
                if (draw := self._draw_of(checkpoint)) is not None
            )
        there = [state for state in self._tiers.states() if state not in self._not_to_be_had]
        kept = [Safe(kept.step, kept.draw, "memory") for kept in self._trainer.snapshots.kept()]
        found = {state.step: state for state in [*there, *self._on_disk, *kept]}
        return tuple(found[step] for step in sorted(found))

    def states_if_changed(self) -> tuple[tuple[int, int, str], ...] | None:
        """The same for a step's record; None if they are those of the last record."""
        before, self._recorded = self._recorded, self.states()
        if self._recorded == before:
            return None
        return tuple((state.step, state.draw, state.where) for state in self._recorded)

    def ask_elsewhere(self) -> None:
        """Ask the tiers what they hold now; takes as long as they do."""
        if self._tiers.any:
            self._not_to_be_had.clear()
            self._patiently(self._tiers.ask)

    def fetch(self, state: Safe) -> bool:
        """Bring a state here that only a tier has; whether it lies on this disk now.

        Nothing is decided yet: a store that is silent costs time alone, and another state may do.
        """
        known = self._run_log.ledger.checkpoint_health.get(state.step)
        if known is None:
            return False
        manifest = known.manifest
        here = self._patiently(lambda: self._tiers.bring(manifest) is not None)
        if not here:
            self._not_to_be_had.add(state)
            self._say(f"WARNING: step {state.step} cannot be had; going back to another state")
        self.look_again()
        return here

    def look_again(self) -> None:
        """Checkpoints were written, removed, or poisoned."""
        self._on_disk = None

    def carry_out(
        self,
        data: Mapping[str, Any],
        to: Safe | None,
        *,
        who: str,
        reason: str,
        fork: bool = False,
    ) -> Iterator[StepRecord | Event]:
        """Write the decision durably, then do what it says, as the records are taken.

        `data` is that of a decision of kind `recover` without the checkpoints it poisons, `to` the
        state to go back to, None to stay; a `fork` opens the next major segment.

        Yields:
            Records of steps already made, of which none is lost, and of saves. What comes after
            one of them goes by what its reader has written down.

        Raises:
            LedgerError: it could not be written; nothing was changed.
            NeedsPerson: no state is left that can be gone back to.
        """
        trainer = self._trainer
        yield from trainer.completed()
        if to is not None:
            # What is being saved must be known by its manifest, or it could not be poisoned.
            yield from trainer.saved(wait=True)
        poison = [] if to is None else self._beyond(to.step)
        asked = {**data, "poison": poison}
        decision = self._run_log.decide(
            "recover", trainer.position.step, asked, who=who, reason=reason
        )
        self.look_again()
        if poison:
            self._tiers.withdraw()
        checkpoint = self._go_back(to) if to is not None else None
        trainer.apply(decision)
        changes = any(data.get(key) for key in ("skip", "set", "reset"))
        if to is not None or changes or fork:
            trainer.enter(self.open_segment(trainer.settings, reason, checkpoint, fork))
            step = trainer.position.step
            self._run_log.emit(EventKind.SETTINGS_READ_BACK, step, live=trainer.live_settings())
        if poison and not self._checkpoints():
            # A snapshot dies with the process: until something lies on disk again, a crash would
            # leave nothing to go on from.
            yield from trainer.save()
            yield from trainer.saved(wait=True)

    def open_segment(
        self,
        settings: Recipe,
        reason: str,
        checkpoint: int | None = None,
        fork: bool = False,
    ) -> str:
        """Begin a segment under `settings` where the trainer stands; its number."""
        position = self._trainer.position
        try:
            self._run_log.open_segment(
                reason,
                settings,
                step=position.step,
                draw=position.draw,
                checkpoint=checkpoint,
                fingerprint=self._fingerprint,
                fork=fork,
            )
        except (OSError, SegmentTaken) as error:
            # The decision is in the ledger and holds; only its stretch has no number of its own.
            self._say(f"WARNING: no segment could be opened: {error}")
        return self._run_log.segment_name

    def _go_back(self, to: Safe) -> int | None:
        began, left = self._run_log.clock.monotonic(), self._trainer.position.step
        in_memory = to.where == "memory"
        in_memory &= any(kept.step == to.step for kept in self._trainer.snapshots.kept())
        if in_memory:
            try:
                self._trainer.roll_back_in_memory(to.step)
            except DamagedSnapshot as damage:
                self._say(f"WARNING: {damage}")
                in_memory = False
        if not in_memory:
            self._trainer.roll_back(self._restore)
        step = self._trainer.position.step
        self._run_log.emit(
            EventKind.ROLLED_BACK,
            step,
            left=left,
            to=step,
            where="memory" if in_memory else "disk",
            took_s=round(self._run_log.clock.monotonic() - began, 3),
        )
        return None if in_memory else step

    def _restore(self, parts: PartsFor) -> None:
        """The newest checkpoint that can be read: all those beyond the target are poisoned."""
        control = None if self._trainer.ranks is None else self._trainer.ranks.control
        if restore_newest(self._run_log, parts, self._say, control) is None:
            raise NeedsPerson(
                f"there is no checkpoint in {self._run_log.folder.checkpoints} to go back to",
                "put one back, or start another run with --new",
            )

    def _checkpoints(self) -> list[Checkpoint]:
        run_log = self._run_log
        return usable(run_log.folder.checkpoints, run_log.ledger.checkpoint_health)

    def _beyond(self, step: int) -> list[list[Any]]:
        """Step and manifest of every checkpoint that a rollback to a step makes unusable."""
        beyond = {(c.step, c.manifest_sha256) for c in self._checkpoints()}
        if self._tiers.any:
            # A tier may still have what was removed or replaced here, and would give it back.
            recorded = self._run_log.ledger.checkpoint_health
            beyond |= {(saved, one) for saved in recorded for one in recorded[saved].unpoisoned}
            beyond |= self._tiers.unpoisoned()
        return [[saved, manifest] for saved, manifest in sorted(beyond) if saved > step]

    def _patiently(self, work: Callable[[], Answer]) -> Answer:
        """The result of work that waits for a store, while other ranks are told that it goes on."""
        # The store has deadlines of its own; the watchdog gives no other to this phase.
        with self._run_log.time.track("prepare"):
            ranks = self._trainer.ranks
            if ranks is None:
                return work()
            self._trainer.coordinator.order(WaitForStore())
            try:
                return patiently(work, ranks.control)
            finally:
                ranks.control.share(None)

    def _draw_of(self, checkpoint: Checkpoint) -> int | None:
        """Where a checkpoint goes on in the data; None if it does not say."""
        known = self._draws.get(checkpoint.manifest_sha256)
        if known is None:
            try:
                facts = read_facts(checkpoint.path).facts
                known = int(facts["progress"]["position"]["draw"])
            except (RefusedCheckpoint, OSError, KeyError, TypeError, ValueError):
                return None  # it is refused with its reason when somebody wants to load it
            self._draws[checkpoint.manifest_sha256] = known
        return known
