"""Host buffers that hold copies of training state: staging, while it is written, and the buffers of
snapshots in memory that the supervisor owns and that the next process finds again.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longhaul.checkpoint.capture import local_of
from longhaul.checkpoint.shared_memory import Slot
from longhaul.core.units import Bytes, Seconds
from longhaul.model.device import Mark, SideStream, on, queues

_ALIGNED: Bytes = 64
"""Every tensor begins at a multiple of this, so that copies run at full width."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in a buffer, in values that JSON has."""

    begin: Bytes
    dtype: str
    """Its name in torch."""
    shape: Sequence[int]

    def view(self, buffer: Tensor) -> Tensor:
        """The tensor there."""
        dtype = getattr(torch, self.dtype)
        end = self.begin + math.prod(self.shape) * dtype.itemsize
        return buffer[self.begin : end].view(dtype).view(torch.Size(self.shape))


def lay_out(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Place], Bytes]:
    """A place for each tensor, and the size of the buffer."""
    places, end = {}, 0
    for name, tensor in tensors.items():
        places[name] = Place(end, str(tensor.dtype).removeprefix("torch."), tensor.shape)
        end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
    return places, end


def taken_bytes(size: Bytes, pinned: bool) -> Bytes:
    """Bytes that a buffer takes: torch gives out page-locked memory in powers of two."""
    return 1 << max(0, size - 1).bit_length() if pinned else size


_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class SnapshotInSharedMemory:
    """A snapshot that outlived the process that took it."""

    step: int
    draw: int
    attempt: int
    """That took it."""
    time: Seconds
    """When it was sealed; Unix time."""
    checksum: int
    """Of this rank's bytes."""

    @property
    def key(self) -> tuple[int, int, int]:
        """The same on all ranks."""
        return self.step, self.draw, self.attempt


@dataclass(slots=True)
class SharedBuffer:
    """A buffer in a slot."""

    slot: Slot
    buffer: Tensor
    owner: "SharedBuffers"
    pinned: bool
    """Page-locked for copies of the owner's GPU."""

    def seal(
        self, checksum: int, at: Mapping[str, int], places: Mapping[str, Place], facts: str
    ) -> None:
        """All of the snapshot is there."""
        owner = self.owner
        stamp = {"attempt": owner.attempt, "time": owner.wall(), "layout": owner.layout}
        size = self.buffer.nbytes
        rows = [(name, place.begin, place.dtype, place.shape) for name, place in places.items()]
        held = {"size": size, "checksum": checksum, "places": rows, "facts": facts}
        self.slot.seal(size, {**stamp, **at, **held})

    def release(self) -> None:
        """Give the memory back; the buffer is not touched any more."""
        self.slot.break_seal()
        if self.pinned:
            with on(self.owner.device):
                torch.cuda.cudart().cudaHostUnregister(self.buffer.data_ptr())
        self.slot.free()
        self.owner.free.append(self.slot)


@dataclass(eq=False)
class SharedBuffers:
    """What one rank has of the supervisor's memory."""

    slots: Sequence[Slot]
    attempt: int
    """Of this process."""
    layout: str
    """Which rank of which layout this is; others' bytes are no use to it."""
    wall: Callable[[], Seconds]
    device: torch.device = _CPU
    """That this rank trains on."""

    def __post_init__(self) -> None:
        self.free = list(self.slots)

    @property
    def held_bytes(self) -> Bytes:
        """Memory that all slots take, whoever has filled them."""
        return sum(slot.held_bytes for slot in self.slots)

    def new(self, size: Bytes, pinned: bool) -> SharedBuffer | None:
        """An unsealed buffer; None without a slot or a page-lock, OSError without the memory."""
        if not self.free or size == 0:
            return None
        slot = self.free.pop()
        slot.break_seal()
        try:
            shared = self._mapped(slot, size, pinned)
        except OSError:
            self.free.append(slot)
            raise
        if shared.pinned != pinned:
            shared.release()
            return None
        return shared

    def survivors(self) -> list[SnapshotInSharedMemory]:
        """What was left under this layout, by rising step."""
        return sorted(self._sealed(), key=lambda snapshot: (snapshot.step, snapshot.attempt))

    def adopt(
        self, wanted: Sequence[SnapshotInSharedMemory]
    ) -> Iterator[tuple[SnapshotInSharedMemory, SharedBuffer, Mapping[str, Any]]]:
        """The buffers and labels of `wanted`, by rising step; all others give their memory back."""
        found = self._sealed()
        kept = [found[snapshot][0] for snapshot in wanted]
        self.free[:] = [slot for slot in self.slots if slot not in kept]
        for slot in self.free:
            slot.break_seal()
            slot.free()
        for snapshot in sorted(wanted, key=lambda one: one.step):
            slot, label = found[snapshot]
            yield snapshot, self._mapped(slot, label["size"], self.device.type == "cuda"), label

    def _sealed(self) -> dict[SnapshotInSharedMemory, tuple[Slot, Mapping[str, Any]]]:
        found = {}
        names = ("step", "draw", "attempt", "time", "checksum")
        for slot in self.slots:
            label = slot.label()
            if label is not None and label["layout"] == self.layout:
                found[SnapshotInSharedMemory(*(label[name] for name in names))] = slot, label
        return found

    def _mapped(self, slot: Slot, size: Bytes, pinned: bool) -> SharedBuffer:
        buffer = torch.frombuffer(slot.data(size), dtype=torch.uint8)
        if pinned:
            with on(self.device):
                failed = int(torch.cuda.cudart().cudaHostRegister(buffer.data_ptr(), size, 0))
            pinned = failed == 0
        return SharedBuffer(slot, buffer, self, pinned)


_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
_SLICE_BYTES: Bytes = 8 << 20
"""What a thread copies at once: many to each thread, so that all end at about the same time."""
_COPIERS = min(4, os.cpu_count() or 1)
"""Threads of one copy on the host: memory is as fast as a few of them."""


class Staging:
    """One set of host buffers, allocated once: memory stays flat, and page-locked memory is not
    asked for again and again. Filling it overwrites the copy before. `settled`: whoever changes the
    state calls `settle` before, so that a GPU computes while it copies.
    """

    def __init__(self, settled: bool = False) -> None:
        self._settled = settled
        self._side = SideStream()
        self._buffers: dict[str, Tensor] = {}
        self._in_place: dict[str, Tensor] = {}
        self._on_host: list[tuple[Tensor, Tensor]] = []
        self._copied: Mark | None = None
        self._copiers: ThreadPoolExecutor | None = None

    @property
    def held_bytes(self) -> Bytes:
        """What the buffers take."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def begin(self, tensors: Mapping[str, Tensor], in_place: bool = False) -> bool:
        """Make room for `tensors` and queue the copies of a GPU. What lies on the host must not
        change until `copy` is through, which another thread may do. Asked to leave them `in_place`,
        it copies nothing where all lie there, and says so: none may change while they are read.
        """
        local = {name: local_of(tensor) for name, tensor in tensors.items()}
        in_place = in_place and all(t.is_cpu and t.is_contiguous() for t in local.values())
        self._in_place, local = (local, {}) if in_place else ({}, local)
        self._buffers = {name: self._buffer(name, tensor) for name, tensor in local.items()}
        self._on_host = []
        device = next((one.device for one in local.values() if queues(one.device)), _CPU)
        with self._side.reading(local.values(), device):
            for name, tensor in local.items():
                buffer = self._buffers[name]
                if tensor.device.type == "cpu" and tensor.is_contiguous():
                    self._on_host.append((buffer, tensor))
                else:
                    buffer.copy_(tensor, non_blocking=queues(tensor.device))
            self._copied = Mark(device).record() if queues(device) else None
        if not self._settled:
            self.settle()
        return in_place

    def settle(self) -> None:
        """Have a GPU finish its copies before it does what is queued from now on. The host does not
        wait.
        """
        self._side.join()

    def copy(self) -> None:
        """Copy what lies on the host.

        Slices are dealt out to threads of our own. Torch deals a copy out tensor by tensor, and
        beside processes that hold the cores each waits for the slowest thread: 1.6 GB in 420
        tensors took 2.5 to 3.1 s on two such cores, and 0.57 s this way.
        """
        pairs = [(_bytes(buffer), _bytes(tensor)) for buffer, tensor in self._on_host]
        self._on_host = []
        slices = [
            (target[begin : begin + _SLICE_BYTES], source[begin : begin + _SLICE_BYTES])
            for target, source in pairs
            for begin in range(0, source.size, _SLICE_BYTES)
        ]
        if sum(source.size for _, source in slices) <= _SLICE_BYTES:
            _copy_slices(slices)
            return
        if self._copiers is None:
            self._copiers = ThreadPoolExecutor(_COPIERS, thread_name_prefix="staging")
        # Dealt out by hand, because handing over each slice would cost more than copying it.
        shares = [slices[first::_COPIERS] for first in range(_COPIERS)]
        others = [self._copiers.submit(_copy_slices, share) for share in shares[1:]]
        _copy_slices(shares[0])
        for other in others:
            other.result()

    def filled(self) -> Mapping[str, Tensor]:
        """The buffers, once all copies have arrived; called on the thread that reads them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._buffers | self._in_place

    def release(self) -> None:
        """Give the memory back."""
        self._buffers, self._in_place = {}, {}
        if self._copiers is not None:
            self._copiers.shutdown()
            self._copiers = None

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != like.dtype:
            return torch.empty(like.shape, dtype=like.dtype, pin_memory=queues(like.device))
        return buffer


def _copy_slices(slices: Sequence[tuple[_Bytes, _Bytes]]) -> None:
    for target, source in slices:
        np.copyto(target, source)


def _bytes(tensor: Tensor) -> _Bytes:
    # `reshape(-1)` because a 0-d tensor cannot be viewed as bytes; no values are converted.
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
