"""DCP's planners, told which pieces of each tensor lie here.

DCP plans who writes what (pieces that several ranks hold are dealt out among them) and what is
read from where when tensors were cut otherwise. Stock planners ask DTensors how they are cut;
weights that the tensor dimension cuts are none, so here the answer comes from `core.pieces`.
"""

import io
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
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
from longhaul.checkpoint.tensor_file import DTYPES
from longhaul.core.errors import LonghaulError
from longhaul.core.pieces import Piece, Pieces
from longhaul.store.strict import RefusedCheckpoint


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
    """Plans to write every piece that lies here; those that lie elsewhere too are dealt out."""

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
                    _chunk(piece),
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
            chunks = [_chunk(piece) for _, piece in self._take(name, local_of(tensor))]
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


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.offset), torch.Size(piece.size))
