"""Host buffers that hold a copy of training state while it is written.

They are allocated once and used for every save, so that memory stays flat and, on a GPU,
page-locked memory is not asked for again and again.

Enters: live tensors. Leaves: CPU tensors with the same bits that training does not touch; of
sharded ones this rank's shards.
Never knows: what is done with them.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from longhaul.checkpoint.shards import local_of


class Staging:
    """One set of host buffers; filling it again overwrites the copy before."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy `tensors`; on a GPU the copies are only queued, ahead of all later work."""
        local = {name: local_of(tensor) for name, tensor in tensors.items()}
        self._buffers = {name: self._buffer(name, tensor) for name, tensor in local.items()}
        queued = False
        for name, tensor in local.items():
            self._buffers[name].copy_(tensor, non_blocking=tensor.is_cuda)
            queued |= tensor.is_cuda
        self._copied = torch.cuda.current_stream().record_event() if queued else None

    def filled(self) -> Mapping[str, Tensor]:
        """The buffers, once all copies have arrived; called on the thread that reads them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._buffers

    def release(self) -> None:
        """Give the memory back."""
        self._buffers = {}

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != like.shape or buffer.dtype != like.dtype:
            return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
        return buffer
