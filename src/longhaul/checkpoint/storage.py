"""DCP's storage, pickle-free: a tensor file for each rank and one `metadata.json`.

Planning (who writes what, what is read from where when the number of ranks differs) is DCP's.
Stock DCP pickles its metadata and lets `torch.load` run code in entries that are no tensors;
both are replaced here by a refusal. Importing this file imports `torch.distributed.checkpoint`, so
it is imported where it is used.
"""

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from longhaul.checkpoint.layout import PiecesLoadPlanner, PiecesSavePlanner, StoredChunk, to_json
from longhaul.checkpoint.tensor_file import DTYPES, METADATA_NAME, SUFFIX, write_tensor_file
from longhaul.core.pieces import Pieces
from longhaul.parallel.control import Control
from longhaul.store.manifest import FileEntry, RefusedCheckpoint, write_listed_json

# One process without a process group is what most people run, not something to warn about.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")


@dataclasses.dataclass(frozen=True, slots=True)
class _Written:
    """What a rank tells the coordinator of one chunk, and of the file it lies in."""

    chunk: StoredChunk
    file: FileEntry


class CheckpointWriter(StorageWriter):
    """Writes a rank's chunks to `__RANK_0.safetensors`; the coordinator adds `metadata.json`.

    Args:
        folder: exists on every rank.
    """

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
        keys: list[tuple[MetadataIndex, str]] = []
        for item in plan.items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            key = _key(item)
            tensors[key] = tensor.detach().cpu().contiguous()
            keys.append((item.index, key))
        results: list[WriteResult] = []
        if tensors:
            file = write_tensor_file(self._folder / plan.storage_data, tensors)
            for index, key in keys:
                written = _Written(StoredChunk(file.name, key), file)
                results.append(WriteResult(index, tensors[key].nbytes, written))
        return _done(results)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write `metadata.json` for the chunks of all ranks, and fsync it."""
        written = {
            MetadataIndex(result.index.fqn, result.index.offset): result.storage_data
            for rank in results
            for result in rank
        }
        places = {index: place.chunk for index, place in written.items()}
        described = write_listed_json(self._folder / METADATA_NAME, to_json(metadata, places))
        by_name = {place.file.name: place.file for place in written.values()}
        self.files = (*(by_name[name] for name in sorted(by_name)), described)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do: a writer writes one checkpoint, whose folder it was given."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: the folder exists."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: DCP is never to choose this class by a path."""
        return False


class CheckpointReader(StorageReader):
    """Fills tensors from the chunks of a checkpoint, whatever number of ranks wrote it.

    Args:
        folder: its files were compared with the manifest.
        metadata: as `layout.from_json` returned it.
    """

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        self._folder = folder
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata given at the start: it is read and checked before DCP sees it."""
        return self._metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan as it is, after the headers of all files it needs agree with the metadata.

        Raises:
            RefusedCheckpoint: a file lacks a chunk, or has it in another dtype or shape; no
                tensor has been touched.
        """
        with ExitStack() as opened:
            files: dict[str, Any] = {}
            for item in plan.items:
                place = self._place(item)
                if place.file not in files:
                    files[place.file] = opened.enter_context(_open(self._folder / place.file))
                self._check_header(files[place.file], place, item)
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """The plans as they are: ranks read independently of each other."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy the chunks of `plan` into the planner's tensors, in place."""
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(self._place(item).file, []).append(item)
        for name, wanted in by_file.items():
            with _open(self._folder / name) as file:
                for item in wanted:
                    chunk = file.get_tensor(self._place(item).key)
                    for dimension, (begin, length) in enumerate(
                        zip(item.storage_offsets, item.lengths, strict=True)
                    ):
                        chunk = chunk.narrow(dimension, begin, length)
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(chunk)
                    planner.commit_tensor(item, target)
        return _done(None)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Nothing to do: a reader reads one checkpoint, whose folder it was given."""

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing to do: the metadata was given at the start."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """False: DCP is never to choose this class by a path."""
        return False

    def _place(self, item: ReadItem) -> StoredChunk:
        place = self._metadata.storage_data[item.storage_index]
        assert isinstance(place, StoredChunk)
        return place

    def _check_header(self, file: Any, place: StoredChunk, item: ReadItem) -> None:
        described = self._metadata.state_dict_metadata[item.storage_index.fqn]
        assert isinstance(described, TensorStorageMetadata)
        chunk = _chunk_at(described.chunks, item.storage_index)
        expected = (DTYPES[described.properties.dtype], list(chunk.sizes))
        try:
            found = file.get_slice(place.key)
            header = (found.get_dtype(), list(found.get_shape()))
        except SafetensorError as error:
            raise RefusedCheckpoint(f"{self._folder / place.file}: {error}") from error
        if header != expected:
            raise RefusedCheckpoint(
                f"{self._folder / place.file}: {place.key} is {header[0]} {header[1]}, "
                f"{METADATA_NAME} says {expected[0]} {expected[1]}"
            )


def save_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    pieces: Mapping[str, Pieces] | None = None,
    control: Control | None = None,
) -> tuple[FileEntry, ...]:
    """Write `tensors` into `folder`, all files on the medium; what was written.

    Several ranks save together, each its own pieces; what more than one of them holds is dealt
    out. What was written is told to rank 0.

    Raises:
        OSError: the medium refused, on whichever rank.
        NotATensor: an entry is no tensor.
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
        _raise_cause(failure)
    return writer.files


def plan_load(
    folder: Path,
    metadata: Metadata,
    tensors: Mapping[str, Tensor],
    pieces: Mapping[str, Pieces] | None = None,
) -> Callable[[], None]:
    """Find out what is to be read from where; the call that fills `tensors` in place.

    Without DCP's collectives: every rank knows the whole metadata and reads what it needs, so the
    ranks have nothing to tell each other.

    Raises:
        RefusedCheckpoint: files and metadata contradict each other; no tensor was touched.
    """
    planner = PiecesLoadPlanner(pieces or {})
    reader = CheckpointReader(folder, metadata)
    planner.set_up_planner(dict(tensors), metadata, is_coordinator=True)
    plan = planner.finish_plan(reader.prepare_local_plan(planner.create_local_plan()))

    def fill() -> None:
        reader.read_data(plan, planner).wait()

    return fill


def _raise_cause(failure: CheckpointException) -> NoReturn:
    """DCP wraps what its steps raise, rank by rank, into a BaseException: show the first."""
    error, _ = failure.failures[min(failure.failures)]
    raise error from None


def _key(item: WriteItem) -> str:
    data = item.tensor_data
    assert data is not None
    if data.chunk.sizes == data.size:
        return item.index.fqn
    return f"{item.index.fqn}@{','.join(map(str, data.chunk.offsets))}"


def _chunk_at(chunks: list[ChunkStorageMetadata], index: MetadataIndex) -> ChunkStorageMetadata:
    if index.index is not None and chunks[index.index].offsets == index.offset:
        return chunks[index.index]
    return next(chunk for chunk in chunks if chunk.offsets == index.offset)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise RefusedCheckpoint(f"{path}: not a file of tensors ({error})") from error


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
