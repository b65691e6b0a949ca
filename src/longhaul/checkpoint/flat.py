"""Where tensors lie in one flat buffer.

Enters: tensors by name. Leaves: a place for each, and views of a buffer.
Never knows: what is copied, or whose memory it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longhaul.core.units import Bytes

_ALIGNED: Bytes = 64
"""Every tensor begins at a multiple of this, so that copies run at full width."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in a buffer."""

    begin: Bytes
    dtype: torch.dtype
    shape: torch.Size

    def view(self, buffer: Tensor) -> Tensor:
        """The tensor there."""
        end = self.begin + math.prod(self.shape) * self.dtype.itemsize
        return buffer[self.begin : end].view(self.dtype).view(self.shape)


def lay_out(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Place], Bytes]:
    """A place for each tensor, and the size of the buffer."""
    places, end = {}, 0
    for name, tensor in tensors.items():
        places[name] = Place(end, tensor.dtype, tensor.shape)
        end += -(-tensor.nbytes // _ALIGNED) * _ALIGNED
    return places, end


def taken_bytes(size: Bytes, pinned: bool) -> Bytes:
    """Bytes that a buffer takes: torch gives out page-locked memory in powers of two."""
    return 1 << max(0, size - 1).bit_length() if pinned else size


def as_rows(places: Mapping[str, Place]) -> list[list[Any]]:
    """The places as JSON values."""
    return [
        [name, place.begin, str(place.dtype).removeprefix("torch."), list(place.shape)]
        for name, place in places.items()
    ]


def from_rows(rows: Sequence[Sequence[Any]]) -> dict[str, Place]:
    """The places that `as_rows` wrote."""
    return {
        name: Place(begin, getattr(torch, dtype), torch.Size(shape))
        for name, begin, dtype, shape in rows
    }
