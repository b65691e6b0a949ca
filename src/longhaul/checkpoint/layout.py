"""`metadata.json`, which is DCP's metadata without pickle, and DCP's planners, told which pieces of
each tensor lie here. What is read is checked as if an enemy had written it.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from longhaul.checkpoint.capture import local_of, piece_of, pieces_here, whole_shape
from longhaul.checkpoint.tensor_file import DTYPES, FORMAT_VERSION, METADATA_NAME, SUFFIX
from longhaul.core.errors import LonghaulError
from longhaul.core.pieces import Piece, Pieces
from longhaul.core.units import Bytes
from longhaul.store.manifest import RefusedCheckpoint, items, table, text, whole_numbers

_DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}
_MOST_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """Where a chunk of a tensor lies."""

    file: str
    key: str
    """Its name within the file."""


def to_json(metadata: Metadata, stored: Mapping[MetadataIndex, StoredChunk]) -> dict[str, Any]:
    """The JSON form of `metadata`, whose chunks lie where `stored` says."""
    tensors = {}
    for name, tensor in metadata.state_dict_metadata.items():
        # The writer has refused byte entries by name before any plan was made.
        assert isinstance(tensor, TensorStorageMetadata)
        chunks = []
        for chunk in tensor.chunks:
            place = stored[MetadataIndex(name, chunk.offsets)]
            chunks.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": place.file,
                    "key": place.key,
                }
            )
        dtype = DTYPES[tensor.properties.dtype]
        tensors[name] = {"dtype": dtype, "size": list(tensor.size), "chunks": chunks}
    return {"format_version": FORMAT_VERSION, "tensors": tensors}


def from_json(value: Any, file_sizes: Mapping[str, Bytes]) -> Metadata:
    """DCP `Metadata` from parsed JSON; its `storage_data` maps each chunk to a `StoredChunk`.

    DCP describes a checkpoint by the chunks of each tensor, so that another number of ranks can
    read it. Stock DCP pickles that description; here it is JSON, and what is read is checked as if
    an enemy had written it: dtypes from a list, sizes whole numbers, chunks that fill their tensor
    exactly, plain names of files that the manifest vouches for and that are large enough.

    Args:
        value: what `metadata.json` holds.
        file_sizes: name → size of the files whose hashes were compared with the manifest.

    Raises:
        RefusedCheckpoint: names the first tensor that is not described soundly.
    """
    body = table(value, {"format_version", "tensors"}, METADATA_NAME)
    if body["format_version"] != FORMAT_VERSION:
        raise RefusedCheckpoint(
            f"{METADATA_NAME}: format version {body['format_version']!r}; "
            f"this longhaul reads {FORMAT_VERSION}"
        )
    if not isinstance(body["tensors"], dict):
        raise RefusedCheckpoint(f"{METADATA_NAME}: tensors is not an object")
    tensors: dict[str, Any] = {}
    stored: dict[MetadataIndex, StoredChunk] = {}
    for name, entry in body["tensors"].items():
        what = f"{METADATA_NAME}: tensor {name!r}"
        fields = table(entry, {"dtype", "size", "chunks"}, what)
        dtype = _DTYPE_OF.get(text(fields["dtype"], what))
        if dtype is None:
            raise RefusedCheckpoint(f"{what}: dtype {fields['dtype']!r} is not one of tensors")
        size = whole_numbers(fields["size"], what)
        chunks = []
        for item in items(fields["chunks"], what):
            chunk, place = _chunk(item, what)
            _check_place(chunk, place, dtype.itemsize, file_sizes, what)
            chunks.append(chunk)
            stored[MetadataIndex(name, chunk.offsets)] = place
        _check_filled(size, chunks, what)
        tensors[name] = TensorStorageMetadata(TensorProperties(dtype), torch.Size(size), chunks)
    return Metadata(tensors, storage_data=stored)


def described(metadata: Metadata) -> dict[str, tuple[torch.dtype, list[int]]]:
    """Name → dtype and global shape of every tensor in `metadata`."""
    return {
        name: (tensor.properties.dtype, list(tensor.size))
        for name, tensor in metadata.state_dict_metadata.items()
        if isinstance(tensor, TensorStorageMetadata)
    }


def _chunk(value: Any, what: str) -> tuple[ChunkStorageMetadata, StoredChunk]:
    fields = table(value, {"offsets", "sizes", "file", "key"}, what)
    chunk = ChunkStorageMetadata(
        torch.Size(whole_numbers(fields["offsets"], what)),
        torch.Size(whole_numbers(fields["sizes"], what)),
    )
    return chunk, StoredChunk(text(fields["file"], what), text(fields["key"], what))


def _check_place(
    chunk: ChunkStorageMetadata,
    place: StoredChunk,
    element_bytes: Bytes,
    file_sizes: Mapping[str, Bytes],
    what: str,
) -> None:
    if place.file not in file_sizes or not place.file.endswith(SUFFIX):
        raise RefusedCheckpoint(f"{what}: {place.file!r} is no tensor file of this checkpoint")
    # Python's integers do not overflow, so an absurd size is found here, before any allocation.
    needed = math.prod(chunk.sizes) * element_bytes
    if needed > file_sizes[place.file]:
        raise RefusedCheckpoint(
            f"{what}: a chunk of {needed} bytes cannot lie in {place.file}, "
            f"which has {file_sizes[place.file]}"
        )


def _check_filled(size: list[int], chunks: list[ChunkStorageMetadata], what: str) -> None:
    if len(size) > _MOST_DIMENSIONS:
        raise RefusedCheckpoint(f"{what}: {len(size)} dimensions")
    for chunk in chunks:
        within = len(chunk.offsets) == len(chunk.sizes) == len(size) and all(
            offset + length <= whole_length
            for offset, length, whole_length in zip(chunk.offsets, chunk.sizes, size, strict=True)
        )
        if not within:
            raise RefusedCheckpoint(
                f"{what}: a chunk of {list(chunk.sizes)} at {list(chunk.offsets)} "
                f"lies outside {size}"
            )
    filled = sum(math.prod(chunk.sizes) for chunk in chunks)
    if filled != math.prod(size) or _overlap(chunks):
        raise RefusedCheckpoint(f"{what}: its chunks do not fill {size} exactly once")


def _overlap(chunks: list[ChunkStorageMetadata]) -> bool:
    """Whether two chunks share an element; swept along the first dimension, where shards lie."""
    ordered = sorted(
        (chunk for chunk in chunks if math.prod(chunk.sizes)), key=lambda chunk: chunk.offsets
    )
    if len(ordered) > 1 and not ordered[0].offsets:
        return True
    for position, chunk in enumerate(ordered):
        for other in ordered[position + 1 :]:
            if other.offsets[0] >= chunk.offsets[0] + chunk.sizes[0]:
                break
            if all(
                a < b + b_length and b < a + a_length
                for a, a_length, b, b_length in zip(
                    chunk.offsets, chunk.sizes, other.offsets, other.sizes, strict=True
                )
            ):
                return True
    return False


class NotATensor(LonghaulError):
    """Training state held something a checkpoint does not take."""


_AS_IT_IS = {"flatten_state_dict": False, "flatten_sharded_tensors": False}
"""Stock planners would take nested state and sharded tensors apart first; neither comes here."""


class _OfPieces:
    """What both planners know: the pieces that lie here.

    Args:
        pieces: by name of a tensor; what is not named lies here whole.
    """

    def __init__(self, pieces: Mapping[str, Pieces]) -> None:
        super().__init__(**_AS_IT_IS)
        self._pieces = pieces
        self._views: dict[MetadataIndex, Tensor] = {}

    def _take(self, name: str, local: Tensor) -> list[tuple[MetadataIndex, Piece]]:
        """Keep a view of every piece of a tensor; where each is found."""
        found = []
        for piece in pieces_here(local, self._pieces.get(name)):
            index = MetadataIndex(name, torch.Size(piece.offset))
            self._views[index] = piece_of(local, piece)
            found.append((index, piece))
        return found


class PiecesSavePlanner(_OfPieces, DefaultSavePlanner):
    """Plans to write every piece that lies here; those that lie elsewhere too are dealt out.

    DCP plans who writes what (pieces that several ranks hold are dealt out among them) and what is
    read from where when tensors were cut otherwise. Stock planners ask DTensors how they are cut;
    weights that the tensor dimension cuts are none, so here the answer comes from `core.pieces`.
    """

    def create_local_plan(self) -> SavePlan:
        """Every piece that lies here.

        Raises:
            NotATensor: an entry is no tensor, or of a dtype that has no name in the format.
        """
        items = []
        for name, tensor in self.state_dict.items():
            local = _checked(name, tensor)
            pieces = self._pieces.get(name)
            for index, piece in self._take(name, local):
                data = TensorWriteData(
                    _chunk_of(piece),
                    TensorProperties(local.dtype),
                    torch.Size(whole_shape(local, pieces)),
                )
                kind = WriteItemType.TENSOR if pieces is None else WriteItemType.SHARD
                items.append(WriteItem(index, kind, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """The piece itself."""
        return self._views[write_item.index]


class PiecesLoadPlanner(_OfPieces, DefaultLoadPlanner):
    """Plans to read every piece that lies here, from whichever chunks hold it."""

    def create_local_plan(self) -> LoadPlan:
        """What each piece is read from."""
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, tensor in self.state_dict.items():
            described = self.metadata.state_dict_metadata[name]
            assert isinstance(described, TensorStorageMetadata)
            chunks = [_chunk_of(piece) for _, piece in self._take(name, local_of(tensor))]
            items += create_read_items_for_chunk_list(name, described, chunks)
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """The part of a piece that a chunk fills."""
        view = self._views[read_item.dest_index]
        ranges = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        for axis, (begin, length) in enumerate(ranges):
            view = view.narrow(axis, begin, length)
        return view

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> NoReturn:
        """Refused: what is no tensor could be code.

        Raises:
            RefusedCheckpoint: always.
        """
        raise RefusedCheckpoint(f"{read_item.dest_index.fqn} is not a tensor")


def _checked(name: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise NotATensor(
            f"training state: {name} is not a tensor", "give it as a fact (JSON) instead"
        )
    if tensor.dtype not in DTYPES:
        raise NotATensor(f"training state: {name} is {tensor.dtype}, which no checkpoint holds")
    return local_of(tensor)


def _chunk_of(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.offset), torch.Size(piece.size))
