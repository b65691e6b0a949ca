"""Saving beside training: the training thread hands the state over, a thread copies and writes it.

Training changes the state once a step, at its end, so the copy is made beside the passes of the
next step; only an update that comes before the copy's end waits (`settle`).
"""

import errno
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from longhaul.checkpoint.capture import TrainingState
from longhaul.checkpoint.host_buffers import Staging
from longhaul.checkpoint.write import Stage, needed_bytes, render_facts, write_checkpoint
from longhaul.core.clocks import Clock
from longhaul.core.errors import NotOwner
from longhaul.core.files import Meter
from longhaul.core.pieces import Pieces
from longhaul.core.units import Bytes, Seconds, short_bytes
from longhaul.logbook.folder import DISK_FULL, RESERVE_BYTES
from longhaul.parallel.control import Control, first_does
from longhaul.store.catalogue import catalogue
from longhaul.store.manifest import Manifest, RefusedCheckpoint

Kind = Literal["written", "committed", "verified", "damaged", "failed", "fenced"]


class CheckpointChange(NamedTuple):
    """Something that happened to a checkpoint since the last poll."""

    kind: Kind
    """The first three are healths. `damaged`: committed, but the medium gives back other bytes; to
    be recorded as poisoned. `failed`: not saved, training may go on. `fenced`: not saved, because
    another attempt owns the run; this one must end."""
    step: int
    data: dict[str, Any]
    """As an event has it. `stall_s`: what this save kept the training thread for, without waiting
    for an earlier one; `full`: the disk is, and nothing could make room."""


_LOOK_EVERY_S: Seconds = 1.0


@dataclass(eq=False)
class Saver:
    """Writes checkpoints on a thread of its own, one at a time."""

    folder: Path
    """The run's `checkpoints/`; made when it is first needed."""
    _: KW_ONLY
    attempt: int
    """Of the lease; it names partial folders."""
    still_owner: Callable[[], bool]
    """The fence, asked on the saver's thread right before a commit."""
    clock: Clock
    control: Control | None = None
    """Of the savers of all ranks, used by their threads alone; rank 0 reports."""
    make_room: Callable[[Bytes], bool] = lambda needed: False
    """Asked on rank 0's saver thread when the disk is full: whether older checkpoints have made so
    many bytes of room. Then the save is tried once more."""
    settled: bool = False
    """Whoever changes the state calls `settle` before. Else `save` returns after the copy."""

    def __post_init__(self) -> None:
        self._staging = Staging(self.settled)
        self._copied = threading.Event()
        self._copied.set()
        self._not_copied: BaseException | None = None
        self._in_place = False
        self._stall_s: Seconds = 0.0
        self._pieces: Mapping[str, Pieces] = {}
        self._changes: deque[CheckpointChange] = deque()
        self._thread: threading.Thread | None = None
        self._meter = Meter()

    @property
    def held_bytes(self) -> Bytes:
        """What the buffers of the copy take."""
        return self._staging.held_bytes

    def save(
        self,
        step: int,
        state: TrainingState,
        alive: Callable[[], object] = lambda: None,
        at_rest: bool = False,
    ) -> Seconds:
        """Copy `state` and start to write it; seconds waited for the save before this one. Training
        may go on, and change its tensors after `settle`. Errors as `render_facts`. `at_rest`: no
        step is to come, so a state on the host is written from where it is, without a copy, and
        `settle` waits for the writing.
        """
        began = self.clock.monotonic()
        facts = render_facts(step, self.attempt, state.facts)
        waited = self.wait(alive)
        self._in_place = self._staging.begin(state.tensors, at_rest and self.settled)
        self._pieces = state.pieces
        self._copied.clear()
        # A daemon, because a process told to stop at once must not wait for a disk; what it was
        # writing is a partial folder that nobody chooses and the next attempt sweeps.
        self._thread = threading.Thread(
            target=self._copy_and_write, args=(step, facts, began), name=f"save step-{step}",
            daemon=True,
        )  # fmt: skip
        self._thread.start()
        self._stall_s = self.clock.monotonic() - began - waited
        if not self.settled:
            self.settle()
        return waited

    @property
    def copying(self) -> bool:
        """The state is still being read, or could not be: `settle` before it changes."""
        return self._not_copied is not None or not self._copied.is_set()

    def settle(self) -> None:
        """Wait until the state may change; raises whatever kept the copy from being made, once. For
        copies of a GPU only the GPU waits.
        """
        self._staging.settle()
        if self.copying:
            began = self.clock.monotonic()
            self._copied.wait()
            self._stall_s += self.clock.monotonic() - began
        error, self._not_copied = self._not_copied, None
        if error is not None:
            raise error

    def poll(self) -> list[CheckpointChange]:
        """What happened since the last call, in order; never waits."""
        return [self._changes.popleft() for _ in range(len(self._changes))]

    def wait(self, alive: Callable[[], object] = lambda: None) -> Seconds:
        """Wait for the save in progress, read-back included; the seconds it took. `alive` is called
        now and then while bytes of this rank move, but not while it hangs or waits for other ranks.
        """
        began = self.clock.monotonic()
        if self._thread is not None:
            if not self._in_place:
                self.settle()
            seen = self._meter.total
            while self._thread.is_alive():
                self._thread.join(_LOOK_EVERY_S)
                if seen != self._meter.total:
                    seen = self._meter.total
                    alive()
            self._thread = None
            self.settle()
        return self.clock.monotonic() - began

    def close(self, alive: Callable[[], object] = lambda: None) -> None:
        """Wait for the save in progress, as `wait`, and give the buffers back."""
        self.wait(alive)
        self._staging.release()

    def _copy_and_write(self, step: int, facts: bytes, began: Seconds) -> None:
        try:
            self._staging.copy()
        except BaseException as error:  # noqa: BLE001 (raised where the state is to change)
            self._not_copied = error
            self._copied.set()
            return
        if not self._in_place:
            self._copied.set()
        with self._meter.counting():
            self._write(step, facts, began)
        self._copied.set()

    def _write(self, step: int, facts: bytes, began: Seconds) -> None:
        sha256, size_bytes = "", 0

        def report(kind: Kind, message: str = "", full: bool = False) -> None:
            if self.control is not None and self.control.rank != 0:
                return
            data = {
                "health": kind,
                "manifest": sha256,
                "size_bytes": size_bytes,
                "seconds_since_save": round(self.clock.monotonic() - began, 3),
                "stall_s": round(self._stall_s, 6),
                "message": message,
            }
            change = CheckpointChange(kind, step, data | ({"full": True} if full else {}))
            self._changes.append(change)

        try:
            for stage, manifest, sha256 in self._stages(step, facts):  # noqa: B007 (read above)
                size_bytes = manifest.size_bytes
                report(stage)
        except NotOwner as error:
            report("fenced", str(error))
        except RefusedCheckpoint as error:
            report("damaged", f"checkpoint step-{step} does not read back: {error}")
        except OSError as error:
            reason = self._reason(error, facts)
            report("failed", self._failure(step, reason), full=error.errno in DISK_FULL)
        except BaseException as error:  # noqa: BLE001 (a thread has nobody above it to tell)
            report("failed", self._failure(step, f"{type(error).__name__}: {error}"))

    def _stages(self, step: int, facts: bytes) -> Iterator[tuple[Stage, Manifest, str]]:
        stages = partial(
            write_checkpoint,
            self.folder,
            step=step,
            attempt=self.attempt,
            tensors=self._staging.filled(),
            pieces=self._pieces,
            facts=facts,
            still_owner=self.still_owner,
            clock=self.clock,
            control=self.control,
        )
        try:
            yield from stages()
        except OSError as error:
            # All ranks have the same error, so all of them come here, or none.
            if error.errno not in DISK_FULL or not first_does(
                self.control, partial(self._room, facts)
            ):
                raise
            yield from stages()

    def _room(self, facts: bytes) -> bool:
        needed = needed_bytes(self._staging.filled(), facts, self._pieces) + RESERVE_BYTES
        return self.make_room(max(1, needed - shutil.disk_usage(self.folder).free))

    def _failure(self, step: int, reason: str) -> str:
        remains = "no earlier one exists"
        with suppress(OSError):
            if intact := [entry.step for entry in catalogue(self.folder) if not entry.damage]:
                remains = f"step-{intact[-1]} is intact"
        return (
            f"checkpoint step-{step} was not saved: {reason}; {remains}; the next save tries again"
        )

    def _reason(self, error: OSError, facts: bytes) -> str:
        if error.errno not in DISK_FULL:
            code = errno.errorcode.get(error.errno or 0, "no errno")
            return f"{error.strerror or error} ({code}, {error.filename or self.folder})"
        needed = short_bytes(needed_bytes(self._staging.filled(), facts, self._pieces))
        free = "?"
        with suppress(OSError):
            free = short_bytes(shutil.disk_usage(self.folder).free)
        return (
            f"no space left on {self.folder} (needs {needed} beside {short_bytes(RESERVE_BYTES)} "
            f"that stay free for the journal; {free} free)"
        )
