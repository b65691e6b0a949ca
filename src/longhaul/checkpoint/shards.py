"""A rank's own part of a tensor that is cut over ranks.

Sharded tensors are PyTorch's DTensors or plain ones; which rectangles of the whole they are is told
beside them (`core.pieces`). DTensors are known here by the method that gives their local part,
because importing their module costs what one process has no use for.

Enters: tensors, whole or cut. Leaves: what lies in this process.
Never knows: meshes, or why a tensor is cut.
"""

import math
from typing import cast

from torch import Tensor

from longhaul.core.pieces import Piece, Pieces
from longhaul.core.units import Bytes


def local_of(tensor: Tensor) -> Tensor:
    """The part of `tensor` that lies here: itself, or its shard. Writing to it changes both."""
    tensor = tensor.detach()
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else cast(Tensor, to_local())


def pieces_here(tensor: Tensor, pieces: Pieces | None) -> tuple[Piece, ...]:
    """The rectangles of the whole that a local tensor consists of; by itself it is the whole."""
    if pieces is not None:
        return pieces.mine
    origin = (0,) * tensor.dim()
    return (Piece(origin, origin, tuple(tensor.shape)),)


def piece_of(local: Tensor, piece: Piece) -> Tensor:
    """A view of the piece in its holder's own tensor."""
    for axis, (begin, length) in enumerate(zip(piece.local, piece.size, strict=True)):
        local = local.narrow(axis, begin, length)
    return local


def whole_shape(local: Tensor, pieces: Pieces | None) -> tuple[int, ...]:
    """Shape of the whole tensor."""
    return tuple(local.shape) if pieces is None else pieces.shape


def whole_bytes(local: Tensor, pieces: Pieces | None) -> Bytes:
    """Bytes of the whole tensor, all shards together."""
    return math.prod(whole_shape(local, pieces)) * local.element_size()
