"""Writing the tensors of one rank or of many: each rank writes a file of its own, and what several
of them have alike is dealt out among them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from longhaul.checkpoint.capture import local_of, pieces_here, whole_shape
from longhaul.checkpoint.layout import METADATA_NAME, Chunk, StoredTensor, misfit, to_json
from longhaul.checkpoint.tensor_file import DTYPES, SUFFIX, write_tensor_file
from longhaul.core.errors import LonghaulError
from longhaul.core.pieces import Pieces
from longhaul.parallel.control import Control, all_do, deal_out, first_does
from longhaul.store.manifest import FileEntry, render_json, write_listed_file


class NotATensor(LonghaulError):
    """Training state held something a checkpoint does not take."""


@dataclass(frozen=True, slots=True)
class Held:
    """A rectangle of a tensor that lies on a rank; equal on all ranks that have it."""

    name: str
    dtype: torch.dtype
    whole: tuple[int, ...]
    """Shape of the whole tensor."""
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def key(self) -> str:
        """Its name within a file."""
        if self.sizes == self.whole:
            return self.name
        return f"{self.name}@{','.join(map(str, self.offsets))}"


def save_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    pieces: Mapping[str, Pieces] | None = None,
    control: Control | None = None,
) -> tuple[FileEntry, ...]:
    """Write `tensors` into `folder`, all files on the medium; what was written. Ranks call it
    together, and each writes some of its `pieces`. What is not named there lies here whole.

    Raises:
        OSError: the medium refused, on whichever rank.
        NotATensor: an entry is no tensor, or one of a dtype that no checkpoint holds.
    """
    rank = 0 if control is None else control.rank
    own: dict[Held, Tensor] = {}
    shares: list[list[Held]] = []  # on rank 0

    def hold() -> tuple[Held, ...]:
        own.update(_held_here(tensors, pieces or {}))
        return tuple(own)

    def deal(held: Sequence[Sequence[Held]]) -> list[list[Held]]:
        shares.extend(shares_of(held))
        return shares

    share = deal_out(control, hold, deal)

    def write() -> FileEntry | None:
        given = {held.key: own[held].cpu().contiguous() for held in share}
        return write_tensor_file(folder / _file_of(rank), given) if given else None

    written = [file for file in all_do(control, write) if file is not None]

    def describe() -> tuple[FileEntry, ...]:
        content = render_json(to_json(_described(shares)))
        described = write_listed_file(folder / METADATA_NAME, [content])
        return (*sorted(written, key=lambda file: file.name), described)

    return first_does(control, describe)


def shares_of(held: Sequence[Sequence[Held]]) -> list[list[Held]]:
    """What each rank writes of what each has: everything once, by who has the least to write."""
    holders: dict[Held, list[int]] = {}
    for rank, of_rank in enumerate(held):
        for one in of_rank:
            holders.setdefault(one, []).append(rank)
    shares: list[list[Held]] = [[] for _ in held]
    planned_bytes = [0] * len(held)
    for one, ranks in holders.items():
        least = min(ranks, key=planned_bytes.__getitem__)
        shares[least].append(one)
        planned_bytes[least] += math.prod(one.sizes) * one.dtype.itemsize
    return shares


def _held_here(
    tensors: Mapping[str, Tensor], pieces: Mapping[str, Pieces]
) -> Iterator[tuple[Held, Tensor]]:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise NotATensor(
                f"training state: {name} is not a tensor", "give it as a fact (JSON) instead"
            )
        if tensor.dtype not in DTYPES:
            raise NotATensor(f"training state: {name} is {tensor.dtype}, which no checkpoint holds")
        local, cut = local_of(tensor), pieces.get(name)
        whole = whole_shape(local, cut)
        for piece in pieces_here(local, cut):
            held = Held(name, local.dtype, whole, piece.offset, piece.size)
            yield held, local[piece.here]


def _described(shares: Sequence[Sequence[Held]]) -> dict[str, StoredTensor]:
    """The tensors that these shares add up to; ValueError if they leave a hole, or overlap."""
    kinds: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    chunks: dict[str, list[Chunk]] = {}
    for rank, share in enumerate(shares):
        for held in share:
            kinds[held.name] = held.dtype, held.whole
            chunk = Chunk(held.offsets, held.sizes, _file_of(rank), held.key)
            chunks.setdefault(held.name, []).append(chunk)
    stored = {name: StoredTensor(*kinds[name], tuple(chunks[name])) for name in kinds}
    for name, tensor in stored.items():
        if reason := misfit(tensor.size, tensor.chunks):
            raise ValueError(f"{name}: {reason}")
    return stored


def _file_of(rank: int) -> str:
    return f"__{rank}_0{SUFFIX}"
