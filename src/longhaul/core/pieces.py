"""Which rectangles of a whole tensor each process holds.

A weight is cut at most twice: by the tensor dimension of the mesh, along one axis, in each of the
maps that are fused in it (queries, keys, values); then what is left, along its first axis, by the
shard dimension.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Piece:
    """A rectangle of a whole tensor, and where it lies in its holder's own tensor."""

    offset: tuple[int, ...]
    """In the whole."""
    local: tuple[int, ...]
    """In the holder's own."""
    size: tuple[int, ...]

    @property
    def there(self) -> tuple[slice, ...]:
        """Its indices in the whole."""
        return tuple(slice(b, b + s) for b, s in zip(self.offset, self.size, strict=True))

    @property
    def here(self) -> tuple[slice, ...]:
        """Its indices in the holder's own."""
        return tuple(slice(b, b + s) for b, s in zip(self.local, self.size, strict=True))


@dataclass(frozen=True, slots=True)
class Cut:
    """How the tensor dimension of the mesh cuts a weight along one axis."""

    axis: int
    spans: tuple[tuple[tuple[int, int], ...], ...]
    """By rank of that dimension: (first, length) of the stretches it holds, in its own order."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Who holds what of a tensor."""

    shape: tuple[int, ...]
    """Of the whole."""
    by_holder: tuple[tuple[Piece, ...], ...]
    """Of each rank of the group that holds one copy of the whole, in that group's order."""
    holder: int
    """This process's place in that group."""
    copies: int = 1
    """Processes of the world that hold each element."""
    is_first_copy: bool = True
    """No process of a lower rank holds the same."""

    @property
    def mine(self) -> tuple[Piece, ...]:
        """Of this process."""
        return self.by_holder[self.holder]

    def local_shape(self, holder: int) -> tuple[int, ...]:
        """Shape of a holder's own tensor; its first axis is 0 where it holds nothing."""
        pieces = self.by_holder[holder]
        if not pieces:
            return (0, *self.shape[1:])
        ends = [
            [begin + size for begin, size in zip(piece.local, piece.size, strict=True)]
            for piece in pieces
        ]
        return tuple(max(end) for end in zip(*ends, strict=True))


def cut_evenly(length: int, ways: int) -> tuple[tuple[int, int], ...]:
    """(first, length) of each of `ways` stretches, as `torch.chunk` cuts; the last may be empty."""
    most = -(-length // ways)
    firsts = [min(way * most, length) for way in range(ways)]
    return tuple((first, min(most, length - first)) for first in firsts)


def cut_parts(parts: Sequence[int], ways: int, axis: int = 0) -> Cut:
    """Maps of these lengths along `axis`, each cut evenly: a rank holds one stretch of each."""
    begins = accumulate(parts, initial=0)
    cuts = [
        [(begin + first, length) for first, length in cut_evenly(part, ways)]
        for begin, part in zip(begins, parts, strict=False)
    ]
    return Cut(axis, tuple(zip(*cuts, strict=True)))


def pieces_of(
    shape: Sequence[int], cut: Cut | None, shards: int, tensors: int
) -> list[list[Piece]]:
    """Pieces of each holder; holders are numbered shard by shard, tensor ranks neighbours.

    Args:
        shape: of the whole.
        cut: by the tensor dimension; None: each of its ranks holds the same.
        shards: ways in which the first axis of what is left is cut.
        tensors: ranks of the tensor dimension.
    """
    holders = []
    for shard in range(shards):
        for tensor in range(tensors):
            axis = 0 if cut is None else cut.axis
            spans = ((0, shape[axis]),) if cut is None else cut.spans[tensor]
            rows = sum(length for _, length in spans) if axis == 0 else shape[0]
            window = cut_evenly(rows, shards)[shard]
            holders.append(list(_rectangles(tuple(shape), axis, spans, window)))
    return holders


def _rectangles(
    shape: tuple[int, ...], axis: int, spans: Sequence[tuple[int, int]], window: tuple[int, int]
) -> Iterator[Piece]:
    first_row, num_rows = window
    at = 0
    for begin, length in spans:
        offset, local, size = [0] * len(shape), [0] * len(shape), list(shape)
        if axis == 0:
            low, high = max(at, first_row), min(at + length, first_row + num_rows)
            offset[0], local[0], size[0] = begin + low - at, low - first_row, high - low
        else:
            offset[0], size[0] = first_row, num_rows
            offset[axis], local[axis], size[axis] = begin, at, length
        at += length
        if min(size) > 0:
            yield Piece(tuple(offset), tuple(local), tuple(size))
