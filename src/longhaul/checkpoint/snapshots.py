"""Snapshots of training state in the host's memory, to go back to without a disk.

A snapshot is one flat buffer that holds all tensors, and the facts as JSON. Buffers are used
again; when the next one would not fit the budget, the oldest snapshot gives up its own. Where a
supervisor has shared memory, they lie there (`host_buffers.py`), and outlive this process.
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch
from torch import Tensor

from longhaul.checkpoint.capture import PartsFor, TrainingState, local_of, put_back
from longhaul.checkpoint.host_buffers import (
    Place,
    SharedBuffer,
    SharedBuffers,
    SnapshotInSharedMemory,
    lay_out,
    taken_bytes,
)
from longhaul.core.errors import LonghaulError
from longhaul.core.units import Bytes
from longhaul.model.device import Mark, SideStream, queues
from longhaul.parallel.control import Control

_CPU = torch.device("cpu")
_FEWEST = 2
"""With a single snapshot, the one that is taken next would be the only one to go back to."""
_MOST = 8
"""More would reach back further than checkpoints do, and take memory that others could use."""


class DamagedSnapshot(LonghaulError):
    """The host's memory gives back other bytes than were put there."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What can be gone back to."""

    step: int
    draw: int
    """Next position in the order of data."""


@dataclass(slots=True)
class _Held:
    snapshot: Snapshot
    buffer: Tensor
    places: Mapping[str, Place]
    facts: str
    copied: Mark | None
    shared: SharedBuffer | None = None
    checksum: int | None = None
    """Of the buffer; None until all copies have arrived."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def settle(self) -> None:
        with self.lock:
            if self.checksum is not None:
                return
            if self.copied is not None:
                self.copied.synchronize()
            self.checksum = _checksum(self.buffer)
            if self.shared is not None:
                at = {"step": self.snapshot.step, "draw": self.snapshot.draw}
                self.shared.seal(self.checksum, at, self.places, self.facts)

    def release(self) -> None:
        with self.lock:
            if self.shared is not None:
                self.shared.release()


@dataclass(eq=False)
class SnapshotRing:
    """The newest snapshots that fit a budget."""

    budget: Bytes
    """That all snapshots together may take."""
    most: int = _MOST
    """Snapshots to keep at most."""
    control: Control | None = None
    """Of all ranks, each with its own shards: all take a snapshot and hand it back, or none."""
    shared: SharedBuffers | None = None
    """Memory that outlives this process; None: its own."""
    settled: bool = False
    """Whoever changes the state calls `settle` before, so that a GPU computes while it copies."""
    _side: SideStream = field(default_factory=SideStream, init=False)
    _held: list[_Held] = field(default_factory=list, init=False)

    @property
    def held_bytes(self) -> Bytes:
        """What all snapshots take."""
        return sum(held.buffer.nbytes for held in self._held)

    def take(self, step: int, draw: int, state: TrainingState) -> bool:
        """Copy `state`, in place of the oldest snapshot if the budget asks for it; on a GPU the
        copies are only queued, on a stream of their own. False, with none held, if fewer than two
        of this size fit, or the host refuses the memory. Errors as `render_facts`.
        """
        facts = json.dumps(state.facts, allow_nan=False)
        tensors = {name: local_of(tensor) for name, tensor in state.tensors.items()}
        places, size = lay_out(tensors)
        devices = (tensor.device for tensor in tensors.values() if queues(tensor.device))
        device = next(devices, _CPU)
        pinned = queues(device)
        fit = min(self.budget // max(1, taken_bytes(size, pinned)), self.most)
        if not self._agreed(fit >= _FEWEST):
            self.clear()
            return False
        self.drop(lambda kept: kept.step == step)
        buffer: Tensor | None = None
        shared: SharedBuffer | None = None
        with suppress(RuntimeError, MemoryError, OSError):
            buffer, shared = self._buffer(size, pinned)
        if not self._agreed(buffer is not None) or buffer is None:
            # The host has less than it seemed to have. Training goes on; checkpoints must do.
            self.budget = 0
            self.clear()
            return False
        with self._side.reading(tensors.values(), device):
            for name, tensor in tensors.items():
                # What lies on the host is copied before this returns, and may change at once.
                places[name].view(buffer).copy_(tensor, non_blocking=queues(tensor.device))
            copied = Mark(device).record() if pinned else None
        if not self.settled:
            self.settle()
        for held in self._held:
            held.settle()  # their copies arrived long ago
        new = _Held(Snapshot(step, draw), buffer, places, facts, copied, shared)
        if copied is None:
            new.settle()
        elif shared is not None:  # a death before the next one would leave it unsealed
            threading.Thread(target=new.settle, name="seal", daemon=True).start()
        self._held.append(new)
        self._held.sort(key=lambda held: held.snapshot.step)
        return True

    def settle(self) -> None:
        """Have the GPU finish its copies before it does what is queued from now on: the state may
        change. The host does not wait.
        """
        self._side.join()

    def kept(self) -> tuple[Snapshot, ...]:
        """What can be gone back to, by rising step."""
        return tuple(held.snapshot for held in self._held)

    def hand_back(self, step: int, parts_for: PartsFor) -> None:
        """Fill the live tensors of the parts from the snapshot of `step`, bit by bit.

        Raises:
            KeyError: there is none.
            DamagedSnapshot: its bytes have changed; nothing was touched, and it is dropped.
            StateMismatch: it holds other tensors than the parts; nothing was touched.
        """
        held = next((held for held in self._held if held.snapshot.step == step), None)
        if held is None:
            raise KeyError(f"there is no snapshot of step {step}")
        held.settle()
        sound = _checksum(held.buffer) == held.checksum
        if not self._agreed(sound):
            self.drop(lambda kept: kept.step == step)
            where = "another rank's" if sound else "the host's"
            raise DamagedSnapshot(
                f"the snapshot of step {step} has changed in {where} memory",
                "go back to a checkpoint, and have this machine's memory tested",
            )
        self.settle()
        facts = json.loads(held.facts)
        kept = {name: place.view(held.buffer) for name, place in held.places.items()}
        put_back(parts_for(facts), kept, facts)

    def drop(self, unwanted: Callable[[Snapshot], bool]) -> None:
        """Forget snapshots, such as those of a stretch that was gone back behind."""
        for held in [held for held in self._held if unwanted(held.snapshot)]:
            self._held.remove(held)
            held.release()

    def clear(self) -> None:
        """Forget all snapshots and give the memory back."""
        self.drop(lambda _: True)

    def survivors(self) -> list[SnapshotInSharedMemory]:
        """What an earlier process of this rank has left, by rising step; before `adopt`."""
        return [] if self.shared is None else self.shared.survivors()

    def adopt(self, wanted: Sequence[SnapshotInSharedMemory]) -> None:
        """Hold these as if this process had taken them, and give back the memory of the others."""
        self._held = []
        if self.shared is not None:
            for found, shared, label in self.shared.adopt(wanted):
                snapshot = Snapshot(found.step, found.draw)
                places = {name: Place(*place) for name, *place in label["places"]}
                checksum = found.checksum
                self._held.append(
                    _Held(snapshot, shared.buffer, places, label["facts"], None, shared, checksum)
                )

    def _agreed(self, fine: bool) -> bool:
        return fine if self.control is None else self.control.agree(fine)

    def _buffer(self, size: Bytes, pinned: bool) -> tuple[Tensor, SharedBuffer | None]:
        """A buffer of the oldest snapshot if there must be no more of them, or else a new one."""
        while self._held:
            taken = sum(taken_bytes(held.buffer.nbytes, pinned) for held in self._held)
            fits = taken + taken_bytes(size, pinned) <= self.budget
            if self._agreed(len(self._held) < self.most and fits):
                break
            oldest = self._held.pop(0)
            if oldest.buffer.nbytes == size and oldest.buffer.is_pinned() == pinned:
                if oldest.shared is not None:
                    oldest.shared.slot.break_seal()
                return oldest.buffer, oldest.shared
            oldest.release()
        if self.shared is not None and (new := self.shared.new(size, pinned)) is not None:
            return new.buffer, new
        return torch.zeros(size, dtype=torch.uint8, pin_memory=pinned), None


def _checksum(buffer: Tensor) -> int:
    """The sum of all 8-byte words, modulo 2⁶⁴: a single flipped bit always changes it."""
    return int(buffer.view(torch.int64).sum())
