"""Writing tensors that many ranks hold, by DCP, which deals out what several of them have; without
pickle: a tensor file for each rank and one `metadata.json`. Importing this file takes long.
"""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from longhaul.checkpoint.capture import local_of, piece_of, pieces_here, whole_shape
from longhaul.checkpoint.layout import METADATA_NAME, Chunk, StoredTensor, to_json
from longhaul.checkpoint.tensor_file import DTYPES, SUFFIX, write_tensor_file
from longhaul.core.errors import LonghaulError
from longhaul.core.pieces import Pieces
from longhaul.parallel.control import Control
from longhaul.store.manifest import FileEntry, write_listed_json

# One process without a process group is what most people run, not something to warn about.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")


class NotATensor(LonghaulError):
    """Training state held something a checkpoint does not take."""


class PiecesSavePlanner(DefaultSavePlanner):
    """Plans to write every piece that lies here; those that lie elsewhere too are dealt out. Stock
    planners ask DTensors how they are cut; weights that the tensor dimension cuts are none, so here
    the answer comes from `pieces`. What is not named there lies here whole.
    """

    def __init__(self, pieces: Mapping[str, Pieces]) -> None:
        # They would take nested state and sharded tensors apart first; neither comes here.
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._pieces = pieces
        self._views: dict[MetadataIndex, Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        """Every piece that lies here; a `NotATensor` if an entry is none of a known dtype."""
        items = []
        for name, tensor in self.state_dict.items():
            local = _checked(name, tensor)
            pieces = self._pieces.get(name)
            for piece in pieces_here(local, pieces):
                index = MetadataIndex(name, torch.Size(piece.offset))
                self._views[index] = piece_of(local, piece)
                data = TensorWriteData(
                    ChunkStorageMetadata(torch.Size(piece.offset), torch.Size(piece.size)),
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


def _checked(name: str, tensor: Any) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise NotATensor(
            f"training state: {name} is not a tensor", "give it as a fact (JSON) instead"
        )
    if tensor.dtype not in DTYPES:
        raise NotATensor(f"training state: {name} is {tensor.dtype}, which no checkpoint holds")
    return local_of(tensor)


class CheckpointWriter(StorageWriter):
    """Writes a rank's chunks to `__RANK_0.safetensors`; the coordinator adds `metadata.json`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: tuple[FileEntry, ...] = ()
        """On the coordinator, once `finish` has run: all files of all ranks."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Tell each rank the name of its file."""
        return [
            dataclasses.replace(plan, storage_data=f"__{rank}_0{SUFFIX}")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's chunks and fsync them; a rank without any writes no file."""
        tensors: dict[str, Tensor] = {}
        for item in plan.items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            tensors[_key(item)] = tensor.detach().cpu().contiguous()
        written: Future[list[WriteResult]] = Future()
        results = []
        if tensors:
            file = write_tensor_file(self._folder / plan.storage_data, tensors)
            for item in plan.items:
                key = _key(item)
                results.append(WriteResult(item.index, tensors[key].nbytes, (key, file)))
        written.set_result(results)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write `metadata.json` for the chunks of all ranks, and fsync it."""
        written: dict[MetadataIndex, tuple[str, FileEntry]] = {
            MetadataIndex(result.index.fqn, result.index.offset): result.storage_data
            for rank in results
            for result in rank
        }
        tensors = {}
        for name, tensor in metadata.state_dict_metadata.items():
            # The planner has refused byte entries by name before any plan was made.
            assert isinstance(tensor, TensorStorageMetadata)
            chunks = []
            for chunk in tensor.chunks:
                key, file = written[MetadataIndex(name, chunk.offsets)]
                chunks.append(Chunk(tuple(chunk.offsets), tuple(chunk.sizes), file.name, key))
            tensors[name] = StoredTensor(tensor.properties.dtype, tuple(tensor.size), tuple(chunks))
        described = write_listed_json(self._folder / METADATA_NAME, to_json(tensors))
        by_name = {file.name: file for _, file in written.values()}
        self.files = (*(by_name[name] for name in sorted(by_name)), described)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do: a writer writes one checkpoint, whose folder it was given."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the folder exists."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: DCP is never to choose this class by a path."""
        return False


def _key(item: WriteItem) -> str:
    data = item.tensor_data
    assert data is not None
    if data.chunk.sizes == data.size:
        return item.index.fqn
    return f"{item.index.fqn}@{','.join(map(str, data.chunk.offsets))}"


def save_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    pieces: Mapping[str, Pieces] | None = None,
    control: Control | None = None,
) -> tuple[FileEntry, ...]:
    """Write `tensors` into `folder`, each rank its pieces, all files on the medium; on rank 0, what
    was written. OSError if the medium refused, on whichever rank; NotATensor if an entry is none.
    """
    writer = CheckpointWriter(folder)
    try:
        save(
            dict(tensors),
            storage_writer=writer,
            planner=PiecesSavePlanner(pieces or {}),
            process_group=None if control is None else control.group,
            no_dist=control is None,
        )
    except CheckpointException as failure:
        # DCP wraps what its steps raise, rank by rank, into a BaseException: show the first.
        error, _ = failure.failures[min(failure.failures)]
        raise error from None
    return writer.files
