"""`metadata.json`: which tensors a checkpoint holds, and in which files; and reading them, whatever
number of ranks wrote them. What is read is checked as if an enemy had written it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, PlainValidator, TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor

from longhaul.checkpoint.capture import local_of, pieces_here
from longhaul.checkpoint.tensor_file import DTYPES, SUFFIX
from longhaul.core.pieces import Piece, Pieces
from longhaul.core.units import Bytes
from longhaul.store.manifest import RefusedCheckpoint, Whole, shaped, versioned

FORMAT_VERSION = 1
METADATA_NAME = "metadata.json"
_DTYPE_OF = {name: dtype for dtype, name in DTYPES.items()}
_MOST_DIMENSIONS = 64


def _dtype_called(name: Any) -> torch.dtype:
    if not isinstance(name, str) or name not in _DTYPE_OF:
        raise ValueError(f"{name!r} is not a dtype of tensors")
    return _DTYPE_OF[name]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A rectangle of a whole tensor, and where it lies."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    offsets: tuple[Whole, ...]
    sizes: tuple[Whole, ...]
    file: str
    key: str
    """Its name within the file."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor, by the chunks that fill it."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    dtype: Annotated[torch.dtype, PlainValidator(_dtype_called)]
    size: tuple[Whole, ...]
    chunks: tuple[Chunk, ...]


_TENSORS = TypeAdapter(dict[str, StoredTensor])


def to_json(tensors: Mapping[str, StoredTensor]) -> dict[str, Any]:
    """What `metadata.json` holds."""
    described = {
        name: {
            "dtype": DTYPES[tensor.dtype],
            "size": tensor.size,
            "chunks": [asdict(chunk) for chunk in tensor.chunks],
        }
        for name, tensor in tensors.items()
    }
    return {"format_version": FORMAT_VERSION, "tensors": described}


def from_json(value: Any, file_sizes: Mapping[str, Bytes]) -> dict[str, StoredTensor]:
    """The tensors that `metadata.json` describes; RefusedCheckpoint names the first that is not
    described soundly. Dtypes come from a list, sizes are whole numbers, chunks fill their tensor
    exactly, and files are those in `file_sizes`, whose hashes were compared with the manifest, and
    large enough.
    """
    body = versioned(value, FORMAT_VERSION, {"tensors"}, METADATA_NAME)
    tensors = shaped(_TENSORS, body["tensors"], METADATA_NAME)
    for name, tensor in tensors.items():
        what = f"{METADATA_NAME}: tensor {name!r}"
        for chunk in tensor.chunks:
            _check_place(chunk, tensor.dtype.itemsize, file_sizes, what)
        if reason := misfit(tensor.size, tensor.chunks):
            raise RefusedCheckpoint(f"{what}: {reason}")
    return tensors


def _check_place(
    chunk: Chunk, element_bytes: Bytes, file_sizes: Mapping[str, Bytes], what: str
) -> None:
    if chunk.file not in file_sizes or not chunk.file.endswith(SUFFIX):
        raise RefusedCheckpoint(f"{what}: {chunk.file!r} is no tensor file of this checkpoint")
    # Python's integers do not overflow, so an absurd size is found here, before any allocation.
    needed = math.prod(chunk.sizes) * element_bytes
    if needed > file_sizes[chunk.file]:
        raise RefusedCheckpoint(
            f"{what}: a chunk of {needed} bytes cannot lie in {chunk.file}, "
            f"which has {file_sizes[chunk.file]}"
        )


def misfit(size: tuple[int, ...], chunks: tuple[Chunk, ...]) -> str:
    """Why `chunks` do not fill a tensor of this size exactly once; empty if they do."""
    if len(size) > _MOST_DIMENSIONS:
        return f"{len(size)} dimensions"
    for chunk in chunks:
        within = len(chunk.offsets) == len(chunk.sizes) == len(size) and all(
            offset + length <= whole_length
            for offset, length, whole_length in zip(chunk.offsets, chunk.sizes, size, strict=True)
        )
        if not within:
            return (
                f"a chunk of {list(chunk.sizes)} at {list(chunk.offsets)} lies outside {list(size)}"
            )
    filled = sum(math.prod(chunk.sizes) for chunk in chunks)
    if filled != math.prod(size) or _overlap(chunks):
        return f"its chunks do not fill {list(size)} exactly once"
    return ""


def _overlap(chunks: tuple[Chunk, ...]) -> bool:
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
            if _shared(chunk.offsets, chunk.sizes, other) is not None:
                return True
    return False


def _shared(
    offsets: tuple[int, ...], sizes: tuple[int, ...], chunk: Chunk
) -> tuple[list[int], list[int]] | None:
    """Where the rectangle that a chunk shares with another one begins and ends; None: nowhere."""
    begin = list(map(max, offsets, chunk.offsets))
    end = [
        min(a + a_length, b + b_length)
        for a, a_length, b, b_length in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)
    ]
    return (begin, end) if all(map(int.__lt__, begin, end)) else None


@dataclass(frozen=True, slots=True)
class _Read:
    """A part of a chunk, and the part of a live tensor that it fills."""

    chunk: Chunk
    stored: StoredTensor
    there: tuple[slice, ...]
    """Its indices in the chunk."""
    target: Tensor


def plan_load(
    folder: Path,
    stored: Mapping[str, StoredTensor],
    tensors: Mapping[str, Tensor],
    pieces: Mapping[str, Pieces] | None = None,
) -> Callable[[], None]:
    """What this rank needs from where; the call that fills `tensors` in place. After a
    `RefusedCheckpoint`, as files and metadata contradict each other, no tensor was touched.
    """
    by_file: dict[str, list[_Read]] = {}
    for name, tensor in tensors.items():
        local = local_of(tensor)
        for piece in pieces_here(local, (pieces or {}).get(name)):
            for read in _reads(stored[name], piece, local[piece.here]):
                by_file.setdefault(read.chunk.file, []).append(read)
    for name, reads in by_file.items():
        with _open(folder / name) as file:
            for read in reads:
                _check_header(file, folder / name, read)

    def fill() -> None:
        for name, reads in by_file.items():
            with _open(folder / name) as file:
                for read in reads:
                    read.target.copy_(file.get_tensor(read.chunk.key)[read.there])

    return fill


def _reads(stored: StoredTensor, piece: Piece, view: Tensor) -> Iterator[_Read]:
    for chunk in stored.chunks:
        if (shared := _shared(piece.offset, piece.size, chunk)) is not None:
            here, there = _indices(*shared, piece.offset), _indices(*shared, chunk.offsets)
            yield _Read(chunk, stored, there, view[here])


def _indices(begin: list[int], end: list[int], origin: tuple[int, ...]) -> tuple[slice, ...]:
    """Of a rectangle of the whole, in one that begins at `origin`."""
    return tuple(slice(b - o, e - o) for b, e, o in zip(begin, end, origin, strict=True))


def _check_header(file: Any, path: Path, read: _Read) -> None:
    expected = (DTYPES[read.stored.dtype], list(read.chunk.sizes))
    try:
        found = file.get_slice(read.chunk.key)
        header = (found.get_dtype(), list(found.get_shape()))
    except SafetensorError as error:
        raise RefusedCheckpoint(f"{path}: {error}") from error
    if header != expected:
        raise RefusedCheckpoint(
            f"{path}: {read.chunk.key} is {header[0]} {header[1]}, "
            f"{METADATA_NAME} says {expected[0]} {expected[1]}"
        )


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise RefusedCheckpoint(f"{path}: not a file of tensors ({error})") from error
