"""The tiers of a run's checkpoints: sent to beside training, gone back to, relied on for room.

Copies go elsewhere with the run log beside them, checkpoints come back from there, and events go
into the journal. Nothing here ever stops training.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping

from longhaul.config.recipe import Recipe
from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, LonghaulError, NeedsPerson, NotOwner
from longhaul.core.events import EventKind
from longhaul.core.output import Say
from longhaul.core.records import Safe, StepRecord
from longhaul.core.units import Bytes, Seconds, short_bytes, short_seconds
from longhaul.logbook.folder import created_of
from longhaul.logbook.ledger import CheckpointHealth
from longhaul.logbook.run_log import RunLog
from longhaul.store.catalogue import Checkpoint, catalogue, health_now, health_of, remove, usable
from longhaul.store.fetching import Copy, bring_here, forget_downloads, newest_of_all
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.remote import RemoteTier
from longhaul.store.remote_log import RunLogMirror, editions
from longhaul.store.retention import to_make_room
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Pace, StoreError, Throttle
from longhaul.store.uploader import TierChange, Uploader


class StoreNeeded(LonghaulError):
    """All that is left of this run is elsewhere, and that place does not answer."""

    exit_code = ExitCode.START_AGAIN


def places_of(
    recipe: Recipe, name: str, clock: Clock | None = None, throttle: Throttle | None = None
) -> list[StoreFiles]:
    """Where a recipe has the run of this name lie elsewhere, in its order. RecipeError if an
    address cannot be understood, or its package is not installed.
    """
    return [
        StoreFiles(f"{address.rstrip('/')}/{name}", clock=clock, throttle=throttle)
        for address in recipe.checkpoint.remote
    ]


class Tiers:
    """The remote tiers of one attempt; without any, everything here does nothing. RecipeError if an
    address cannot be understood, or its package is not installed.
    """

    def __init__(self, recipe: Recipe, run_log: RunLog, say: Say) -> None:
        asked, lease, clock = recipe.checkpoint, run_log.lease, run_log.clock
        self._run_log = run_log
        self._say = say
        self._checkpoints = run_log.folder.checkpoints
        self._silent: list[str] = []
        self._given_up: deque[Checkpoint] = deque()
        limit = asked.remote_mb_per_s
        self._throttle = Throttle(Pace(None if limit is None else limit * 1e6))
        # All processes of one attempt, and no others, were given the lease at this moment.
        writer = hashlib.sha256(repr(lease.since).encode()).hexdigest()[:8]
        self._uploaders = [
            Uploader(
                RemoteTier(files),
                still_owner=lease.is_ours,
                clock=clock,
                keep_last=asked.remote_keep_last,
                keep_every=asked.remote_keep_every,
                run_log=RunLogMirror(run_log.folder, files, lease.attempt, writer, clock),
            )
            for files in places_of(recipe, run_log.folder.name, clock, self._throttle)
        ]

    @property
    def any(self) -> bool:
        """Whether there are any."""
        return bool(self._uploaders)

    @property
    def _recorded(self) -> Mapping[int, CheckpointHealth]:
        return self._run_log.ledger.checkpoint_health

    @property
    def pending(self) -> frozenset[int]:
        """Steps whose folders must stay, because a tier has not got them yet."""
        return frozenset().union(*(uploader.pending for uploader in self._uploaders))

    def offer(self) -> None:
        """Send every sound checkpoint that a tier may lack, and the run log; returns at once."""
        recorded = self._recorded
        if not self._uploaders or not recorded:
            return
        self.offer_run_log()
        self.withdraw()
        there = catalogue(self._checkpoints)
        health = health_now(there, recorded)
        for checkpoint in there:
            if not checkpoint.damage and health[checkpoint.step] in ("verified", "good"):
                for uploader in self._uploaders:
                    if checkpoint.manifest_sha256 not in uploader.held:
                        uploader.offer(checkpoint, recorded)

    def offer_run_log(self) -> None:
        """Send what the run's log has gained; returns at once."""
        for uploader in self._uploaders:
            uploader.offer_run_log()

    def withdraw(self) -> None:
        """Take every poisoned checkpoint out of the tiers and of what waits for them.

        Returns at once; from a tier that is away they go when it is back, before anything else is
        sent to it.
        """
        for uploader in self._uploaders:
            uploader.withdraw(self._recorded)

    def unpoisoned(self) -> set[tuple[int, str]]:
        """Step and manifest's hash of what tiers are known to hold, poisoned ones left out."""
        return {
            (checkpoint.step, checkpoint.manifest_sha256)
            for uploader in self._uploaders
            for checkpoint in uploader.known
            if health_of(checkpoint, self._recorded) != "poisoned"
        }

    def states(self) -> Iterator[Safe]:
        """Sound training states that a tier is known to hold; never waits."""
        for uploader in self._uploaders:
            for checkpoint, draw in uploader.held_states:
                known = self._recorded.get(checkpoint.step)
                if known and known.is_sound and known.manifest == checkpoint.manifest_sha256:
                    yield Safe(checkpoint.step, draw, "remote")

    def ask(self) -> None:
        """Ask every tier what it holds; may take long."""
        for uploader in self._uploaders:
            try:
                uploader.learn()
            except StoreError as error:
                self._say(f"WARNING: {error.message}")

    def bring(self, manifest: str) -> Checkpoint | None:
        """Fetch the checkpoint with this manifest's hash; None if it cannot be had."""
        for tier, there in self._elsewhere():
            for checkpoint in there:
                copy = Copy(checkpoint, tier)
                if checkpoint.manifest_sha256 == manifest and (here := self._here(copy)):
                    return here
        return None

    def observe(self, record: StepRecord) -> None:
        """Let transfers yield when the step slows down."""
        if self._uploaders and record.tokens:
            self._throttle.observe(record.seconds.get("training", 0.0) / record.tokens)

    def news(self) -> Iterator[TierChange]:
        """What happened since the last call; never waits."""
        while self._given_up:
            checkpoint = self._given_up.popleft()
            size = {"size_bytes": checkpoint.size_bytes}
            yield TierChange(EventKind.ROOM_MADE, checkpoint.step, size)
        for uploader in self._uploaders:
            yield from uploader.poll()

    def make_room(self, needed: Bytes) -> bool:
        """On a full disk: remove what can be done without; whether that freed so many bytes.

        Called on the saver's thread.
        """
        there = catalogue(self._checkpoints)
        held = frozenset().union(*(uploader.held for uploader in self._uploaders))
        gone = to_make_room(there, health_now(there, self._recorded), held, needed)
        for checkpoint in gone:
            if not self._run_log.lease.is_ours():
                return False
            remove(checkpoint.path)
            self._given_up.append(checkpoint)
        return bool(gone)

    def candidates(self) -> Iterator[Checkpoint]:
        """Checkpoints in the run's own folder to go on from, best first.

        The newest of all tiers comes first: one that is not here is fetched when its turn comes.
        Other tiers are not even asked while the newest one that the ledger knows is here.
        """
        recorded = self._recorded
        local = catalogue(self._checkpoints)
        here = [checkpoint.step for checkpoint in usable(self._checkpoints, recorded)]
        asked = not here or max(here) < self._newest_sound()
        first = None if asked else next(newest_of_all(local, (), recorded), None)
        if first is not None:
            yield first.checkpoint
        # It was refused, or there was nothing to give.
        for copy in newest_of_all(local, self._elsewhere(), recorded):
            if copy != first and (checkpoint := self._here(copy)) is not None:
                yield checkpoint

    def arrived(self, step: int) -> None:
        """Training goes on from the checkpoint of `step`: say what is lost."""
        newest = self._newest_sound()
        if newest > step:
            self._say(
                f"WARNING: step {newest} was saved, and no copy of it can be had; going on "
                f"from step {step}: {newest - step} steps are made again, on the same data"
            )
        if self._uploaders:
            forget_downloads(self._checkpoints)

    def refuse_to_begin_anew(self, nothing_here: bool = True) -> None:
        """A run that has saved must not begin at step 0 because its store is silent, or is not
        where it was: a folder that is not mounted looks empty. A run that has not saved may.
        `nothing_here` is False where a checkpoint lies in the run's own folder, if an unusable one.

        Raises:
            StoreNeeded: nothing is here, and a tier that may have something did not answer.
            NeedsPerson: nothing is here, and the tiers say that they have nothing.
        """
        known = [step for step, entry in self._recorded.items() if entry.health != "poisoned"]
        if not (self._uploaders and known):
            return
        gone = f"no checkpoint is here (step {max(known)} was saved), and"
        anew = "to train from the beginning, use --new or take checkpoint.remote out"
        if self._silent:
            raise StoreNeeded(
                f"{gone} {self._silent[0]}",
                f"start the same command again when the store answers; {anew}",
            )
        if not nothing_here:
            return
        names = ", ".join(uploader.tier.name for uploader in self._uploaders)
        raise NeedsPerson(
            f"{gone} {names} has none", f"mount it, or mend checkpoint.remote; {anew}"
        )

    def settled(self) -> bool:
        """Whether waiting would change nothing: all is sent, or the stores are away."""
        return all(uploader.settled for uploader in self._uploaders)

    def settle(self, most_s: Seconds) -> None:
        """Wait for what is being sent, so long at most for each tier."""
        for uploader in self._uploaders:
            uploader.settle(most_s)

    def unsent(self) -> str:
        """What could not be sent, in words; empty if nothing is left."""
        left = [one for one in self._uploaders if not (one.all_sent or one.taken)]
        return "; ".join(map(_unsent, left))

    def close(self) -> None:
        """End all transfers; the next attempt goes on with them."""
        self._throttle.stop()
        for uploader in self._uploaders:
            uploader.close()

    def _newest_sound(self) -> int:
        return max((step for step, entry in self._recorded.items() if entry.is_sound), default=0)

    def _elsewhere(self) -> list[tuple[RemoteTier, list[Checkpoint]]]:
        found, created = [], created_of(self._run_log.folder)
        for uploader in self._uploaders:
            try:
                run_log = next(editions(uploader.tier.files), None)
                if run_log is not None and created is not None and run_log.created != created:
                    self._say(f"WARNING: in {uploader.tier.name} lies another run of this name")
                else:
                    found.append((uploader.tier, uploader.tier.checkpoints()))
            except StoreError as error:
                self._say(f"WARNING: {error.message}")
                self._silent.append(f"{uploader.tier.name} does not answer: {error.message}")
        return found

    def _here(self, copy: Copy) -> Checkpoint | None:
        """The copy in the run's own folder; None if it cannot be brought here."""
        checkpoint, tier, run_log = copy.checkpoint, copy.tier, self._run_log
        if tier is None:
            return checkpoint
        began = run_log.clock.monotonic()
        size = short_bytes(checkpoint.size_bytes)
        self._say(f"fetching step-{checkpoint.step} ({size}) from {tier.name}")
        try:
            attempt, ours = run_log.lease.attempt, run_log.lease.is_ours
            # Its files have deadlines of their own; the watchdog gives no other to this phase.
            with run_log.time.track("prepare"):
                path = bring_here(checkpoint, tier, self._checkpoints, attempt, ours, self._say)
        except NotOwner:
            raise
        except (StoreError, RefusedCheckpoint, OSError) as error:
            reason = error.message if isinstance(error, LonghaulError) else str(error)
            self._say(f"WARNING: {reason}; trying the next copy")
            self._silent.append(reason)
            return None
        took_s = run_log.clock.monotonic() - began
        run_log.emit(
            EventKind.FETCHED,
            checkpoint.step,
            tier=tier.name,
            manifest=checkpoint.manifest_sha256,
            size_bytes=checkpoint.size_bytes,
            took_s=round(took_s, 3),
        )
        self._say(f"fetched step-{checkpoint.step} from {tier.name} in {short_seconds(took_s)}")
        return next(c for c in catalogue(self._checkpoints) if c.path == path)


def _unsent(uploader: Uploader) -> str:
    name = uploader.tier.name
    if not (uploader.pending or uploader.run_log_due):
        return f"poisoned checkpoints could not be removed from {name}; the next start removes them"
    what = [f"step-{step}" for step in sorted(uploader.pending)] or ["the run's log"]
    return f"{', '.join(what)} could not be sent to {name}; the next start of this run sends it"
