"""Megatron-LM's index: how long each sequence is, and which sequences make a document.

Enters: an `.idx` and the size of its `.bin`. Leaves: the type of a token and where documents end.
Never knows: tokens. Source: `megatron/core/datasets/indexed_dataset.py` in Megatron-LM.

Layout, little-endian:

    0   b"MMIDIDX\\0\\0"
    9   uint64 version 1, uint8 code of the tokens' type
    18  uint64 S (sequences), uint64 D (documents + 1)
    34  S × int32 tokens of each sequence; S × int64 its first byte in the .bin;
        D × int64 first sequence of each document, and S
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError

INDEX_MAGIC = b"MMIDIDX\0\0"

_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_AT_ONCE = 1 << 16
_AGAIN = "copy the .bin and the .idx again, both from the same run of preprocess_data.py"


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """An index that fits its `.bin`.

    Attributes:
        path: the `.idx`.
        dtype: of a token.
        num_sequences: S.
        num_documents: D - 1; empty ones included.
    """

    path: Path
    dtype: np.dtype[Any]
    num_sequences: int
    num_documents: int

    def document_ends(self) -> Iterator[int]:
        """Position after each document's last token, in order.

        Raises:
            DataError: the file has become shorter.
            OSError: it cannot be read.
        """
        with self.path.open("rb") as lengths, self.path.open("rb") as documents:
            lengths.seek(_HEADER.size)
            documents.seek(_documents_at(self.num_sequences))
            sequence = end = 0
            for boundaries in _chunks(self.path, documents, self.num_documents + 1, "<i8"):
                for boundary in boundaries.tolist():
                    for chunk in _chunks(self.path, lengths, boundary - sequence, "<i4"):
                        end += int(chunk.sum(dtype=np.int64))
                    sequence = boundary
                    yield end


def read_index(path: Path, bin_size: int) -> MegatronIndex:
    """Read an index and hold every figure in it against the two files' sizes.

    Args:
        path: the `.idx`.
        bin_size: bytes of its `.bin`.

    Raises:
        DataError: it is no index, truncated, or describes another `.bin`.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        size = file.seek(0, 2)
        if not head.startswith(INDEX_MAGIC):
            raise DataError(
                f"{path}: not Megatron-LM's index (it begins with {head[:9]!r})", _AGAIN
            )
        if len(head) < _HEADER.size:
            raise DataError(f"{path}: truncated at {size:,} bytes, inside its header", _AGAIN)
        _, version, code, num_sequences, num_boundaries = _HEADER.unpack(head)
        if version != 1:
            raise DataError(f"{path}: index version {version:,}; longhaul reads 1", _AGAIN)
        if code not in _DTYPES:
            what = f"of {_FLOATS[code]}" if code in _FLOATS else f"of the unknown type {code}"
            raise DataError(f"{path}: tokens {what}", "token numbers are integers, codes 1-5 or 8")
        _check_size(path, size, num_sequences, num_boundaries)
        dtype = np.dtype(_DTYPES[code])
        file.seek(_HEADER.size)
        _check_sequences(path, file, num_sequences, dtype.itemsize, bin_size)
        file.seek(_documents_at(num_sequences))
        _check_documents(path, file, num_sequences, num_boundaries)
    return MegatronIndex(path, dtype, num_sequences, num_boundaries - 1)


def _documents_at(num_sequences: int) -> int:
    return _HEADER.size + 12 * num_sequences


def _check_size(path: Path, size: int, num_sequences: int, num_boundaries: int) -> None:
    expected = _documents_at(num_sequences) + 8 * num_boundaries
    if size == expected + num_sequences and num_sequences:
        raise DataError(
            f"{path}: an index of several modes (images beside text)", "give a corpus of text alone"
        )
    if size != expected or not num_boundaries:
        raise DataError(
            f"{path}: its header counts {num_sequences:,} sequences and {num_boundaries:,} "
            f"document borders, which take {expected:,} bytes, but it is {size:,} long",
            _AGAIN,
        )


def _check_sequences(path: Path, file: BinaryIO, count: int, itemsize: int, bin_size: int) -> None:
    """Sequences must follow each other without a gap and fill the `.bin`, as Megatron writes."""
    position = number = 0
    with path.open("rb") as second:
        second.seek(_HEADER.size + 4 * count)
        for lengths, pointers in zip(
            _chunks(path, file, count, "<i4"), _chunks(path, second, count, "<i8"), strict=True
        ):
            if int(lengths.min()) < 0:
                at = int(np.argmax(lengths < 0))
                raise DataError(
                    f"{path}: sequence {number + at:,} has {lengths[at]:,} tokens", _AGAIN
                )
            ends = position + np.cumsum(lengths, dtype=np.int64) * itemsize
            wrong = pointers != np.concatenate([[position], ends[:-1]])
            if wrong.any():
                at = int(np.argmax(wrong))
                raise DataError(
                    f"{path}: sequence {number + at:,} is said to begin at byte {pointers[at]:,} "
                    f"of the .bin; the ones before it end at "
                    f"{ends[at - 1] if at else position:,} (a gap, or an overlap)",
                    _AGAIN,
                )
            position, number = int(ends[-1]), number + len(lengths)
            if position > bin_size:
                break
    if position != bin_size:
        more = "at least " if number < count else ""
        raise DataError(
            f"{path}: its sequences are {more}{position:,} bytes long, but the .bin has "
            f"{bin_size:,}; truncated, or of another index",
            _AGAIN,
        )


def _check_documents(path: Path, file: BinaryIO, num_sequences: int, count: int) -> None:
    last = number = 0
    for boundaries in _chunks(path, file, count, "<i8"):
        before = np.concatenate([[last], boundaries[:-1]])
        wrong = (boundaries < before) | (boundaries > num_sequences)
        wrong[0] |= number == 0 and boundaries[0] != 0
        if wrong.any():
            at = int(np.argmax(wrong))
            raise DataError(
                f"{path}: document {number + at:,} begins at sequence {boundaries[at]:,} of "
                f"{num_sequences:,}; the one before it at {before[at]:,}",
                _AGAIN,
            )
        last, number = int(boundaries[-1]), number + len(boundaries)
    if last != num_sequences:
        raise DataError(
            f"{path}: its documents end at sequence {last:,} of {num_sequences:,}", _AGAIN
        )


def _chunks(path: Path, file: BinaryIO, count: int, dtype: str) -> Iterator[npt.NDArray[Any]]:
    """`count` integers from where the file stands, at most 65,536 at once."""
    itemsize = np.dtype(dtype).itemsize
    while count > 0:
        taken = min(count, _AT_ONCE)
        content = file.read(taken * itemsize)
        if len(content) != taken * itemsize:
            raise DataError(
                f"{path}: it became shorter while it was read",
                "start again once nothing writes to it",
            )
        yield np.frombuffer(content, dtype)
        count -= taken
