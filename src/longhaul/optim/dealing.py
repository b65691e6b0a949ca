"""Whole matrices out of parts, each at one rank, for what cannot be computed on parts.

Enters: this rank's parts of a stack of matrices. Leaves: its parts of what a function made of the
whole ones; each matrix was computed once, and the work is spread over all ranks that hold it.
Never knows: what the function is.

Shape suffixes: N matrices of the stack, M those dealt to this rank, R rows and C columns of a whole
one, r and c those of this rank's part.
"""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from longhaul.core.pieces import Piece, Pieces
from longhaul.optim.sharding import Sharding

Whole = Callable[[Tensor], Tensor]
"""[M, R, C] → [M, R, C], matrix by matrix."""


class Dealing:
    """A stack of matrices of one shape, cut alike, dealt out to the ranks that hold them.

    Args:
        sharding: the ranks.
        pieces: of each of the matrices.
        count: matrices of the stack.
        first: rank, counted over replicas and holders, that gets the first one; others follow.
    """

    def __init__(self, sharding: Sharding, pieces: Pieces, count: int, first: int) -> None:
        self._sharding, self._pieces = sharding, pieces
        self._holders = dist.get_world_size(sharding.holders)
        self._replicas = dist.get_world_size(sharding.replicas)
        self._shapes = [pieces.local_shape(holder) for holder in range(self._holders)]
        places = [(first + n) % (self._replicas * self._holders) for n in range(count)]
        self._numbers = [
            [
                [n for n, at in enumerate(places) if at == replica + self._replicas * holder]
                for holder in range(self._holders)
            ]
            for replica in range(self._replicas)
        ]
        """By replica and holder, which matrices it is dealt."""

    def __call__(self, parts_Nrc: Tensor, function: Whole) -> Tensor:
        """`function` of the whole matrices, cut again. All ranks call it together."""
        dealt = self._numbers[dist.get_rank(self._sharding.replicas)]
        whole_MRC = self._gathered(parts_Nrc, dealt)
        made_MRC = function(whole_MRC) if len(whole_MRC) else whole_MRC
        back_Nrc = self._scattered(made_MRC, parts_Nrc, dealt)
        return back_Nrc if self._replicas == 1 else self._told(back_Nrc)

    def _gathered(self, parts_Nrc: Tensor, dealt: list[list[int]]) -> Tensor:
        mine = self._pieces.holder
        order = [n for numbers in dealt for n in numbers]
        own = parts_Nrc[0].numel()
        sent = parts_Nrc[order].flatten()
        count = len(dealt[mine])
        sizes = [count * math.prod(shape) for shape in self._shapes]
        received = self._exchange(sent, [own * len(numbers) for numbers in dealt], sizes)
        whole_MRC = parts_Nrc.new_empty(count, *self._pieces.shape)
        segments = received.split(sizes)
        for holder, (segment, shape) in enumerate(zip(segments, self._shapes, strict=True)):
            part_Mrc = segment.view(count, *shape)
            for piece in self._pieces.by_holder[holder]:
                whole_MRC[_there(piece)] = part_Mrc[_here(piece)]
        return whole_MRC

    def _scattered(self, made_MRC: Tensor, parts_Nrc: Tensor, dealt: list[list[int]]) -> Tensor:
        count = len(made_MRC)
        segments = []
        for holder, shape in enumerate(self._shapes):
            part_Mrc = made_MRC.new_empty(count, *shape)
            for piece in self._pieces.by_holder[holder]:
                part_Mrc[_here(piece)] = made_MRC[_there(piece)]
            segments.append(part_Mrc.flatten())
        own = parts_Nrc[0].numel()
        sizes = [len(segment) for segment in segments]
        received = self._exchange(
            torch.cat(segments), sizes, [own * len(numbers) for numbers in dealt]
        )
        order = [n for numbers in dealt for n in numbers]
        back_Nrc = torch.empty_like(parts_Nrc)
        back_Nrc[order] = received.view(len(order), *parts_Nrc.shape[1:])
        return back_Nrc

    def _told(self, back_Nrc: Tensor) -> Tensor:
        """Every replica's matrices, from the replica that was dealt them."""
        rows = [[n for numbers in dealt for n in numbers] for dealt in self._numbers]
        most = max(len(row) for row in rows)
        row = rows[dist.get_rank(self._sharding.replicas)]
        own_Mrc = back_Nrc.new_zeros(most, *back_Nrc.shape[1:])
        own_Mrc[: len(row)] = back_Nrc[row]
        all_Mrc = back_Nrc.new_empty(len(rows) * most, *back_Nrc.shape[1:])
        dist.all_gather(list(all_Mrc.split(most)), own_Mrc, group=self._sharding.replicas)
        for row, made_Mrc in zip(rows, all_Mrc.split(most), strict=True):
            back_Nrc[row] = made_Mrc[: len(row)]
        return back_Nrc

    def _exchange(self, sent: Tensor, give: list[int], take: list[int]) -> Tensor:
        if self._holders == 1:
            return sent
        received = sent.new_empty(sum(take))
        dist.all_to_all_single(received, sent, take, give, group=self._sharding.holders)
        return received


def _there(piece: Piece) -> tuple[slice, ...]:
    """Index of a piece in a stack of whole matrices."""
    return _index(piece.offset, piece.size)


def _here(piece: Piece) -> tuple[slice, ...]:
    """Index of a piece in a stack of its holder's parts."""
    return _index(piece.local, piece.size)


def _index(begin: tuple[int, ...], size: tuple[int, ...]) -> tuple[slice, ...]:
    spans = (slice(b, b + s) for b, s in zip(begin, size, strict=True))
    return (slice(None), *spans)
