"""Snapshots of training state in the host's memory, to go back to without a disk.

A snapshot is one flat buffer that holds all tensors, and the facts as JSON: the same capture as a
checkpoint's, no pickle. Buffers are allocated once and used again; when the next one would not
fit the budget, the oldest snapshot gives up its own.

Enters: the live training state, at step borders. Leaves: the same bits, in the live tensors.
Never knows: whether a state is a good one, or why somebody goes back.
"""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from longhaul.checkpoint.capture import (
    PartsFor,
    TrainingState,
    capture,
    check_same,
    describe,
    descriptions,
)
from longhaul.checkpoint.capture import hand_back as hand_back_to
from longhaul.checkpoint.shards import local_of
from longhaul.core.errors import LonghaulError
from longhaul.core.units import Bytes
from longhaul.parallel.control import Control

_ALIGNED: Bytes = 64
"""Every tensor begins at a multiple of this, so that copies run at full width."""
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor lies in a buffer."""

    begin: Bytes
    dtype: torch.dtype
    shape: torch.Size

    def view(self, buffer: Tensor) -> Tensor:
        end = self.begin + math.prod(self.shape) * self.dtype.itemsize
        return buffer[self.begin : end].view(self.dtype).view(self.shape)


@dataclass(slots=True)
class _Held:
    """A snapshot with its bytes."""

    snapshot: Snapshot
    buffer: Tensor
    places: Mapping[str, _Place]
    facts: str
    copied: torch.cuda.Event | None
    checksum: int | None = None
    """Of the buffer; None until all copies have arrived."""

    def settle(self) -> None:
        """Wait for the copies, and from then on know the bytes."""
        if self.checksum is None:
            if self.copied is not None:
                self.copied.synchronize()
            self.checksum = _checksum(self.buffer)


class SnapshotRing:
    """The newest snapshots that fit a budget.

    Args:
        budget: bytes that all snapshots together may take.
        most: snapshots to keep at most.
        control: of all ranks, each of which keeps its own shards: a snapshot is taken and handed
            back by all of them or by none.
    """

    def __init__(self, budget: Bytes, most: int = _MOST, control: Control | None = None) -> None:
        self._budget = budget
        self._most = most
        self._control = control
        self._held: list[_Held] = []

    def take(self, step: int, draw: int, state: TrainingState) -> bool:
        """Copy `state`, in place of the oldest snapshot if the budget asks for it.

        On a GPU the copies are only queued, ahead of all later work on the current stream.

        Returns:
            False if fewer than two snapshots of this size fit, or the host refuses the memory;
            then none is held.

        Raises:
            ValueError, TypeError: a fact is no JSON value, or a number that is not finite.
        """
        facts = json.dumps(state.facts, allow_nan=False)
        tensors = {name: local_of(tensor) for name, tensor in state.tensors.items()}
        places, size = _lay_out(tensors)
        pinned = any(tensor.is_cuda for tensor in tensors.values())
        fit = min(self._budget // max(1, _taken(size, pinned)), self._most)
        if not self._agreed(fit >= _FEWEST):
            self.clear()
            return False
        self.drop(lambda kept: kept.step == step)
        buffer: Tensor | None = None
        with suppress(RuntimeError, MemoryError):
            buffer = self._buffer(size, pinned)
        if not self._agreed(buffer is not None) or buffer is None:
            # The host has less than it seemed to have. Training goes on; checkpoints must do.
            self._budget = 0
            self.clear()
            return False
        for name, tensor in tensors.items():
            # What lies on the host is copied before this returns, and may change at once.
            places[name].view(buffer).copy_(tensor, non_blocking=tensor.is_cuda)
        copied = torch.cuda.current_stream().record_event() if pinned else None
        for held in self._held:
            held.settle()  # their copies arrived long ago
        new = _Held(Snapshot(step, draw), buffer, places, facts, copied)
        if copied is None:
            new.settle()
        self._held.append(new)
        self._held.sort(key=lambda held: held.snapshot.step)
        return True

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
        held = self._of(step)
        held.settle()
        sound = _checksum(held.buffer) == held.checksum
        if not self._agreed(sound):
            self._held.remove(held)
            where = "another rank's" if sound else "the host's"
            raise DamagedSnapshot(
                f"the snapshot of step {step} has changed in {where} memory",
                "go back to a checkpoint, and have this machine's memory tested",
            )
        facts = json.loads(held.facts)
        parts = parts_for(facts)
        live = capture(parts)
        local = {name: local_of(tensor) for name, tensor in live.tensors.items()}
        saved = {name: describe(place.dtype, place.shape) for name, place in held.places.items()}
        check_same(saved, descriptions(local))
        with torch.no_grad():
            for name, tensor in local.items():
                view = held.places[name].view(held.buffer)
                tensor.copy_(view, non_blocking=tensor.is_cuda)
        hand_back_to(parts, TrainingState(live.tensors, facts))

    def drop(self, unwanted: Callable[[Snapshot], bool]) -> None:
        """Forget snapshots, such as those of a stretch that was gone back behind."""
        self._held = [held for held in self._held if not unwanted(held.snapshot)]

    def clear(self) -> None:
        """Forget all snapshots and give the memory back."""
        self._held = []

    def _of(self, step: int) -> _Held:
        for held in self._held:
            if held.snapshot.step == step:
                return held
        raise KeyError(f"there is no snapshot of step {step}")

    def _agreed(self, fine: bool) -> bool:
        return fine if self._control is None else self._control.agree(fine)

    def _buffer(self, size: Bytes, pinned: bool) -> Tensor:
        """A buffer of the oldest snapshot if there must be no more of them, or else a new one."""
        while self._held:
            taken = sum(_taken(held.buffer.nbytes, pinned) for held in self._held)
            fits = taken + _taken(size, pinned) <= self._budget
            if self._agreed(len(self._held) < self._most and fits):
                break
            oldest = self._held.pop(0).buffer
            if oldest.nbytes == size and oldest.is_pinned() == pinned:
                return oldest
        return torch.zeros(size, dtype=torch.uint8, pin_memory=pinned)


def _lay_out(tensors: Mapping[str, Tensor]) -> tuple[dict[str, _Place], Bytes]:
    places, end = {}, 0
    for name, tensor in tensors.items():
        places[name] = _Place(end, tensor.dtype, tensor.shape)
        end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
    return places, end


def _taken(size: Bytes, pinned: bool) -> Bytes:
    """Bytes that a buffer takes: torch gives out page-locked memory in powers of two."""
    return 1 << max(0, size - 1).bit_length() if pinned else size


def _checksum(buffer: Tensor) -> int:
    """The sum of all 8-byte words, modulo 2⁶⁴: a single flipped bit always changes it."""
    return int(buffer.view(torch.int64).sum())
