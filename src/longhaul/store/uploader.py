"""Checkpoints brought to another tier beside training, in order, however long its store is away.

The run's log goes before each of them, so that a checkpoint in the tier never lacks the decisions
that it needs.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

from longhaul.core.clocks import Clock
from longhaul.core.errors import NotOwner
from longhaul.core.events import EventKind
from longhaul.core.units import Bytes, Seconds, short_seconds
from longhaul.logbook.ledger import CheckpointHealth, Health
from longhaul.store.catalogue import Checkpoint, health_now, health_of
from longhaul.store.manifest import RefusedCheckpoint
from longhaul.store.remote import RemoteTier
from longhaul.store.remote_log import PlaceTaken, RunLogMirror
from longhaul.store.retention import superseded, to_remove
from longhaul.store.transfers import StoreError, TransferStopped

_WENT_BACK = "the run went back behind it, or it did not read back"
_END_S = 5.0
"""For a piece under way when the run ends; a hanging call is not waited for."""


class TierChange(NamedTuple):
    """Something that happened between a run and its tiers, as an event tells it."""

    kind: EventKind
    step: int
    data: dict[str, Any]


@dataclass(eq=False)
class Uploader:
    """Sends checkpoints to a tier on a thread of its own, one at a time."""

    tier: RemoteTier
    _: KW_ONLY
    still_owner: Callable[[], bool]
    """The fence."""
    clock: Clock
    keep_last: int
    keep_every: int
    """The retention there (`to_remove`)."""
    run_log: RunLogMirror | None = None
    """It goes there too, if there is one."""

    def __post_init__(self) -> None:
        self._run_log_wanted = self._run_log_sent = 0
        """Counts requests to send the run log, and how many of them are done."""
        self._there: tuple[Checkpoint, ...] | None = None
        """What is known to be there; None before the tier has said."""
        self._draws: dict[str, int | None] = {}
        """Manifest's hash → where in the data a checkpoint there goes on."""
        self._queue: list[Checkpoint] = []
        self._recorded: Mapping[int, CheckpointHealth] = {}
        self._offered: set[str] = set()
        self._withdrawn: frozenset[tuple[int, str]] = frozenset()
        self._to_withdraw: frozenset[tuple[int, str]] = frozenset()
        """Step and manifest's hash of the poisoned ones that are gone from there, or must go."""
        self._changes: deque[TierChange] = deque()
        self._failures = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._ended = False
        self.taken = False
        """The place there is another run's, or a later attempt's."""
        self._thread: threading.Thread | None = None

    @property
    def pending(self) -> frozenset[int]:
        """Steps that are still to be sent; their folders must stay."""
        with self._changed:
            return frozenset(checkpoint.step for checkpoint in self._queue)

    @property
    def known(self) -> tuple[Checkpoint, ...]:
        """What is known to be there."""
        return self._there or ()

    @property
    def held(self) -> frozenset[str]:
        """Hashes of the manifests that are known to be there."""
        return frozenset(checkpoint.manifest_sha256 for checkpoint in self.known)

    @property
    def held_states(self) -> list[tuple[Checkpoint, int]]:
        """Checkpoints that are known to be there, and where in the data they go on."""
        draws = [(there, self._draws.get(there.manifest_sha256)) for there in self.known]
        return [(checkpoint, draw) for checkpoint, draw in draws if draw is not None]

    def learn(self) -> None:
        """List what the tier holds; may take long. StoreError if it does not answer."""
        there = tuple(self.tier.checkpoints())
        with self._changed:
            self._there = there
        with suppress(StoreError):  # the next listing reads the draws that are lacking
            for checkpoint in there:
                if checkpoint.manifest_sha256 not in self._draws:
                    self._draws[checkpoint.manifest_sha256] = self.tier.draw_of(checkpoint)

    def offer_run_log(self) -> None:
        """Send what the run log has gained, beside training; returns at once."""
        with self._changed:
            if self.run_log is not None and not self._ended:
                self._run_log_wanted += 1
                self._begin()

    def offer(self, checkpoint: Checkpoint, recorded: Mapping[int, CheckpointHealth]) -> None:
        """Send a verified checkpoint of the run's own folder when its turn comes; returns at once.

        One that was offered before, that the tier holds, or that it would not keep by the healths
        `recorded` by step, is not sent.
        """
        with self._changed:
            self._recorded = dict(recorded)
            if checkpoint.manifest_sha256 in self._offered or self._ended:
                return
            self._offered.add(checkpoint.manifest_sha256)
            self._queue = [item for item in self._queue if item.step != checkpoint.step]
            self._queue = sorted([*self._queue, checkpoint], key=lambda item: item.step)
            self._drop_what_would_not_be_kept()
            self._run_log_wanted += self.run_log is not None
            self._begin()

    def withdraw(self, recorded: Mapping[int, CheckpointHealth]) -> None:
        """Send no poisoned checkpoint, and remove those that are there, before anything else is
        sent; returns at once. Whatever the tier holds is looked through once.
        """
        with self._changed:
            self._recorded = dict(recorded)
            for checkpoint in [item for item in self._queue if self._is_poisoned(item)]:
                self._queue.remove(checkpoint)
                self._emit(EventKind.UPLOAD_DROPPED, checkpoint, _WENT_BACK)
            poisoned = {(step, one) for step in recorded for one in recorded[step].poisoned}
            if poisoned - self._withdrawn and not self._ended:
                self._to_withdraw = frozenset(poisoned)
                self._begin()

    def poll(self) -> Iterator[TierChange]:
        """What happened since the last call, in order."""
        while self._changes:
            yield self._changes.popleft()

    @property
    def settled(self) -> bool:
        """Whether waiting would change nothing: everything is sent, or the store is away."""
        return self.all_sent or self._failures > 0 or self._ended

    @property
    def all_sent(self) -> bool:
        """Whether the tier has every checkpoint offered, the run log, and nothing poisoned."""
        return not self._queue and not self.run_log_due and self._to_withdraw <= self._withdrawn

    @property
    def run_log_due(self) -> bool:
        """Whether the tier lacks something of the run log."""
        return self._run_log_sent < self._run_log_wanted

    def settle(self, most_s: Seconds) -> bool:
        """Wait until everything is sent, the store is away, or time is up; whether all is sent."""
        with self._changed:
            self._changed.wait_for(lambda: self.settled, most_s)
            return self.all_sent

    def close(self) -> None:
        """End the thread; what is left is sent by the next attempt."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.tier.files.throttle.stop()
        if self._thread is not None:
            self._thread.join(_END_S)

    def _begin(self) -> None:
        if self._thread is None:
            # A daemon: a process told to stop must not wait for a store. What it was sending
            # has no manifest, and the next attempt goes on with it.
            name = f"upload to {self.tier.name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: not self.all_sent or self._stopping)
                    if self._stopping:
                        return
                if not (self._done(self._send_run_log) and self._done(self._remove_poisoned)):
                    continue
                with self._changed:
                    checkpoint = self._queue[0] if self._queue else None
                if checkpoint and self._done(partial(self._send, checkpoint), checkpoint):
                    with self._changed:
                        self._queue = [item for item in self._queue if item is not checkpoint]
                        self._changed.notify_all()
        except (TransferStopped, NotOwner):
            pass  # the loop learns of a lost lease from its next save
        except PlaceTaken as taken:
            with self._changed:
                self.taken, self._queue = True, []  # their folders need not stay for this tier
            self._emit(EventKind.STORE_TAKEN, None, f"{taken.message}; {taken.remedy}")
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _send_run_log(self) -> None:
        """Let the tier have the run log as it is when this begins."""
        wanted = self._run_log_wanted
        if self.run_log is None or self._run_log_sent == wanted:
            return
        self.run_log.send(self.still_owner)
        if self._there is None:
            self.learn()
        self._answered(None)
        self._run_log_sent = wanted

    def _remove_poisoned(self) -> None:
        """Let the tier hold nothing that is poisoned when this begins."""
        wanted = self._to_withdraw
        if wanted <= self._withdrawn:
            return
        self.learn()
        for checkpoint in filter(self._is_poisoned, self.known):
            self._remove(checkpoint)
        self._answered(None)
        self._withdrawn = wanted

    def _done(self, work: Callable[[], None], checkpoint: Checkpoint | None = None) -> bool:
        """Whether the store took it; else some time has passed, and it is to be tried again."""
        try:
            work()
        except (TransferStopped, NotOwner, PlaceTaken):
            raise
        except Exception as error:  # noqa: BLE001 (nothing of a tier may stop training)
            self._wait_after(error, checkpoint)
            return False
        with self._changed:
            self._changed.notify_all()
        return True

    def _remove(self, checkpoint: Checkpoint) -> None:
        self._require_lease()
        self.tier.remove(checkpoint)
        with self._changed:
            self._there = tuple(item for item in self.known if item != checkpoint)
        self._emit(EventKind.REMOTE_REMOVED, checkpoint)

    def _require_lease(self) -> None:
        if not self.still_owner():
            raise NotOwner(f"nothing is removed in {self.tier.name}: another attempt owns the run")

    def _is_poisoned(self, checkpoint: Checkpoint) -> bool:
        return health_of(checkpoint, self._recorded) == "poisoned"

    def _send(self, checkpoint: Checkpoint) -> None:
        began = self.clock.monotonic()
        if self._there is None:
            self.learn()
        if not self._wants(checkpoint):
            return
        try:
            sent = self.tier.send(checkpoint.path, partial(self._may_commit, checkpoint))
        except RefusedCheckpoint as refusal:
            if not self._is_poisoned(checkpoint):  # else that was emitted, and it may be gone
                self._emit(EventKind.UPLOAD_DROPPED, checkpoint, str(refusal))
            return
        with self._changed:
            self._there = (*self.known, checkpoint)
        self._answered(checkpoint)
        took_s = self.clock.monotonic() - began
        self._emit(EventKind.UPLOADED, checkpoint, size_bytes=sent, seconds=took_s)
        self._tidy_up(checkpoint)

    def _may_commit(self, checkpoint: Checkpoint) -> bool:
        """The fence of one upload; what was poisoned while it was sent gets no manifest."""
        if self._is_poisoned(checkpoint):
            raise RefusedCheckpoint(_WENT_BACK)
        return self.still_owner()

    def _answered(self, checkpoint: Checkpoint | None) -> None:
        if self._failures:
            self._emit(EventKind.STORE_BACK, checkpoint)
            self._failures = 0

    def _wait_after(self, error: Exception, checkpoint: Checkpoint | None) -> None:
        reason = error.message if isinstance(error, StoreError) else repr(error)
        pause_s = self.tier.files.patience.pause_s(self._failures + 1)
        if self._failures == 0:
            queued = next(iter(self._queue), checkpoint)
            what = "the run's log" if queued is None else f"step-{queued.step}"
            self._emit(
                EventKind.STORE_AWAY,
                queued,
                f"{what} is not in {self.tier.name} yet: {reason}; it stays here "
                f"and is sent later, in order (next attempt in {short_seconds(pause_s)})",
            )
        with self._changed:
            self._failures += 1
            self._changed.notify_all()
        self.tier.files.throttle.wait(pause_s)

    def _wants(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.manifest_sha256 in self.held:
            return False
        others = [item for item in self.known if item.step != checkpoint.step]
        return checkpoint not in self._to_remove([*others, checkpoint])

    def _tidy_up(self, newest: Checkpoint) -> None:
        """Remove there what is not to be kept; failing at it costs space only."""
        with suppress(StoreError):
            self.learn()
            there = list(self.known)
            with self._changed:
                wanted = {item.manifest_sha256 for item in self._queue}
            # A poisoned one must not count as the newer one of a step that was made again.
            gone = [item for item in there if self._is_poisoned(item)]
            gone += superseded([item for item in there if item not in gone])
            gone += self._to_remove([item for item in there if item not in gone])
            for checkpoint in gone:
                self._remove(checkpoint)
            self._require_lease()
            self.tier.remove_unfinished(newest.step, wanted)

    def _to_remove(self, there: list[Checkpoint]) -> list[Checkpoint]:
        # Whatever has a manifest in a tier was read back before.
        health: dict[int, Health] = {
            step: "verified" if word == "committed" else word
            for step, word in health_now(there, self._recorded).items()
        }
        return to_remove(there, health, keep_last=self.keep_last, keep_every=self.keep_every)

    def _drop_what_would_not_be_kept(self) -> None:
        """While a store is away for long, the backlog is what its retention would keep of it."""
        for checkpoint in self._to_remove(self._queue[1:]):  # the first may be under way
            self._queue.remove(checkpoint)
            why = f"newer ones wait for {self.tier.name}, and it would not be kept there"
            self._emit(EventKind.UPLOAD_DROPPED, checkpoint, why)

    def _emit(
        self,
        kind: EventKind,
        checkpoint: Checkpoint | None,
        message: str = "",
        size_bytes: Bytes = 0,
        seconds: Seconds = 0.0,
    ) -> None:
        """Keep a change for the next `poll`; `size_bytes`: sent now, not what was there already."""
        step, manifest = (checkpoint.step, checkpoint.manifest_sha256) if checkpoint else (0, "")
        data = {
            "tier": self.tier.name,
            "manifest": manifest,
            "size_bytes": size_bytes,
            "took_s": round(seconds, 3),
            "message": message,
        }
        self._changes.append(TierChange(kind, step, data))
