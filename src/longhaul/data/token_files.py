"""Files of tokens made elsewhere: nanoGPT's, llm.c's and Megatron-LM's.

Files are read, not mapped: one that somebody cuts short meanwhile is an error and no bus error.
Every figure in a header is checked against the file's size first. Formats, little-endian:

    nanogpt   uint16 tokens and nothing else (`data/*/prepare.py`)
    llm.c     256 × int32: magic 20240520, version 1, number of tokens, zeros; uint16 tokens.
              Magic 20240801, version 7 for uint32 (`dev/data/data_common.py`); modded-nanogpt
              uses the first
    megatron  tokens in `.bin`, everything else in `.idx` (`megatron/core/datasets/
              indexed_dataset.py`): 0 b"MMIDIDX\\0\\0"; 9 uint64 version 1, uint8 code of the
              tokens' type; 18 uint64 S (sequences), uint64 D (documents + 1); 34 S × int32 tokens
              of each sequence, S × int64 its first byte in the .bin, D × int64 first sequence of
              each document, and S
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError
from longhaul.core.units import Bytes
from longhaul.data.tokenizing import TokenArray

INDEX_MAGIC = b"MMIDIDX\0\0"

_INDEX_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_BOTH_AGAIN = "copy the .bin and the .idx again, both from the same run of preprocess_data.py"


@dataclass(frozen=True, slots=True)
class MegatronIndex:
    """An index that fits its `.bin`."""

    path: Path
    dtype: np.dtype[Any]
    """Of a token."""
    num_sequences: int
    num_documents: int
    """D - 1; empty ones included."""

    def document_ends(self) -> Iterator[int]:
        """Position after each document's last token, in order."""
        with self.path.open("rb") as lengths, self.path.open("rb") as documents:
            lengths.seek(_INDEX_HEADER.size)
            documents.seek(_documents_at(self.num_sequences))
            sequence = end = 0
            for boundaries in _chunks(self.path, documents, self.num_documents + 1, "<i8"):
                for boundary in boundaries.tolist():
                    for chunk in _chunks(self.path, lengths, boundary - sequence, "<i4"):
                        end += int(chunk.sum(dtype=np.int64))
                    sequence = boundary
                    yield end


def read_index(path: Path, bin_size: int) -> MegatronIndex:
    """Read an `.idx` and hold every figure in it against its size and that of the `.bin`."""
    with path.open("rb") as file:
        head = file.read(_INDEX_HEADER.size)
        size = file.seek(0, 2)
        if not head.startswith(INDEX_MAGIC):
            raise _bad(path, f"not Megatron-LM's index (it begins with {head[:9]!r})")
        if len(head) < _INDEX_HEADER.size:
            raise _bad(path, f"truncated at {size:,} bytes, inside its header")
        _, version, code, num_sequences, num_boundaries = _INDEX_HEADER.unpack(head)
        if version != 1:
            raise _bad(path, f"index version {version:,}; longhaul reads 1")
        if code not in _DTYPES:
            what = f"of {_FLOATS[code]}" if code in _FLOATS else f"of the unknown type {code}"
            raise _bad(path, f"tokens {what}", "token numbers are integers, codes 1-5 or 8")
        _check_size(path, size, num_sequences, num_boundaries)
        dtype = np.dtype(_DTYPES[code])
        file.seek(_INDEX_HEADER.size)
        _check_sequences(path, file, num_sequences, dtype.itemsize, bin_size)
        file.seek(_documents_at(num_sequences))
        _check_documents(path, file, num_sequences, num_boundaries)
    return MegatronIndex(path, dtype, num_sequences, num_boundaries - 1)


def _documents_at(num_sequences: int) -> int:
    return _INDEX_HEADER.size + 12 * num_sequences


def _check_size(path: Path, size: int, num_sequences: int, num_boundaries: int) -> None:
    expected = _documents_at(num_sequences) + 8 * num_boundaries
    if size == expected + num_sequences and num_sequences:
        way = "give a corpus of text alone"
        raise _bad(path, "an index of several modes (images beside text)", way)
    if size != expected or not num_boundaries:
        raise _bad(
            path,
            f"its header counts {num_sequences:,} sequences and {num_boundaries:,} document "
            f"borders, which take {expected:,} bytes, but it is {size:,} long",
        )


def _check_sequences(path: Path, file: BinaryIO, count: int, itemsize: int, bin_size: int) -> None:
    """Sequences must follow each other without a gap and fill the `.bin`, as Megatron writes."""
    position = number = 0
    with path.open("rb") as second:
        second.seek(_INDEX_HEADER.size + 4 * count)
        for lengths, pointers in zip(
            _chunks(path, file, count, "<i4"), _chunks(path, second, count, "<i8"), strict=True
        ):
            if int(lengths.min()) < 0:
                at = int(np.argmax(lengths < 0))
                raise _bad(path, f"sequence {number + at:,} has {lengths[at]:,} tokens")
            ends = position + np.cumsum(lengths, dtype=np.int64) * itemsize
            wrong = pointers != np.concatenate([[position], ends[:-1]])
            if wrong.any():
                at = int(np.argmax(wrong))
                raise _bad(
                    path,
                    f"sequence {number + at:,} is said to begin at byte {pointers[at]:,} of the "
                    f".bin; the ones before it end at {ends[at - 1] if at else position:,} (a gap, "
                    "or an overlap)",
                )
            position, number = int(ends[-1]), number + len(lengths)
            if position > bin_size:
                break
    if position != bin_size:
        more = "at least " if number < count else ""
        raise _bad(
            path,
            f"its sequences are {more}{position:,} bytes long, but the .bin has {bin_size:,}; "
            "truncated, or of another index",
        )


def _check_documents(path: Path, file: BinaryIO, num_sequences: int, count: int) -> None:
    last = number = 0
    for boundaries in _chunks(path, file, count, "<i8"):
        before = np.concatenate([[last], boundaries[:-1]])
        wrong = (boundaries < before) | (boundaries > num_sequences)
        wrong[0] |= number == 0 and boundaries[0] != 0
        if wrong.any():
            at = int(np.argmax(wrong))
            raise _bad(
                path,
                f"document {number + at:,} begins at sequence {boundaries[at]:,} of "
                f"{num_sequences:,}; the one before it at {before[at]:,}",
            )
        last, number = int(boundaries[-1]), number + len(boundaries)
    if last != num_sequences:
        raise _bad(path, f"its documents end at sequence {last:,} of {num_sequences:,}")


def _bad(path: Path, problem: str, way: str = _BOTH_AGAIN) -> DataError:
    return DataError(f"{path}: {problem}", way)


def _chunks(
    path: Path, file: BinaryIO, count: int, dtype: npt.DTypeLike, at_once: int = 1 << 16
) -> Iterator[npt.NDArray[Any]]:
    """`count` integers from where the file stands, so many at once."""
    itemsize = np.dtype(dtype).itemsize
    for begin in range(0, count, at_once):
        size = min(count - begin, at_once) * itemsize
        content = file.read(size)
        if len(content) != size:
            way = "start again once nothing writes to it"
            raise _bad(path, "it became shorter while it was read", way)
        yield np.frombuffer(content, dtype)


MAX_PIECE_TOKENS = 1 << 20
"""Tokens held at once; a longer document, or a file without documents, is cut at this size."""

_HEADER = struct.Struct("<256i")
_LLM_C: dict[int, tuple[int, np.dtype[Any]]] = {
    20240520: (1, np.dtype("<u2")),
    20240801: (7, np.dtype("<u4")),
}
_EVALUATION_MAGIC = 20240522
_AGAIN = "copy or make the file again"
_DECLARE = (
    'if it is nanoGPT\'s, say so with format = "nanogpt" in data.sources (its files have no sign '
    'of their own); others: "llm.c", and "megatron" with the .idx beside it'
)


@dataclass(frozen=True, slots=True)
class TokenPath:
    """A file of tokens, found but not opened."""

    path: Path
    """Of the `.bin`."""
    name: str
    """Within the source."""
    kind: str
    """`auto`, `nanogpt`, `llm.c` or `megatron`."""
    index: Path | None
    """Megatron's `.idx`, where there is one."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens whose header was checked: all of its tokens are there."""

    path: Path
    name: str
    dtype: np.dtype[Any]
    begin: Bytes
    """Of the first token."""
    num_tokens: int
    index: MegatronIndex | None = None
    """Where Megatron's documents end; other formats do not have it."""

    def pieces(self) -> Iterator[tuple[int, TokenArray]]:
        """Position and tokens of one piece after the other; where the format knows documents, none
        holds parts of two. DataError if the file cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                begin = 0
                for end in self.index.document_ends() if self.index else (self.num_tokens,):
                    for tokens in _chunks(
                        self.path, file, end - begin, self.dtype, MAX_PIECE_TOKENS
                    ):
                        yield begin, tokens
                        begin += len(tokens)
        except OSError as error:
            raise _unreadable(self.path, error) from None


def open_token_file(found: TokenPath) -> TokenFile:
    """Read and check a file's header; DataError if it is truncated, or cannot be true."""
    path = found.path
    try:
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
            size = file.seek(0, 2)
        magic = int.from_bytes(head[:4], "little") if len(head) >= 4 else -1
        if found.kind == "megatron" or (found.kind == "auto" and _has_index(found, magic)):
            return _megatron(found, size)
    except OSError as error:
        raise _unreadable(path, error) from None
    if found.kind == "nanogpt":
        return _nanogpt(found, magic, size)
    if magic in _LLM_C:
        return _llm_c(found, magic, head, size)
    if magic == _EVALUATION_MAGIC:
        problem = f"llm.c's file of multiple-choice questions (magic {magic}), not a corpus"
        raise _bad(path, problem, "give the .bin of a corpus")
    problem = "tokens of an unknown format" if found.kind == "auto" else "not llm.c's format"
    raise _bad(path, f"{problem} (it begins with {head[:8]!r})", _DECLARE)


def _nanogpt(found: TokenPath, magic: int, size: int) -> TokenFile:
    if magic in _LLM_C or magic == _EVALUATION_MAGIC:
        # As tokens the first would be 55,448 or more, which no vocabulary of nanoGPT's has.
        problem = f"said to be nanoGPT's, but it begins with llm.c's magic {magic}"
        raise _bad(found.path, problem, 'set format = "llm.c" for this source')
    if size == 0:
        raise _bad(found.path, "empty", _AGAIN)
    if size % 2:
        problem = f"{size:,} bytes, which is no whole number of uint16 tokens; truncated?"
        raise _bad(found.path, problem, _AGAIN)
    return TokenFile(found.path, found.name, np.dtype("<u2"), 0, size // 2)


def _llm_c(found: TokenPath, magic: int, head: bytes, size: int) -> TokenFile:
    if len(head) < _HEADER.size:
        raise _bad(found.path, f"truncated at {size:,} bytes, inside its header", _AGAIN)
    _, version, num_tokens, *_ = _HEADER.unpack(head)
    expected_version, dtype = _LLM_C[magic]
    if version != expected_version:
        problem = f"llm.c version {version}; with magic {magic} it is {expected_version}"
        way = "make the file with llm.c's or modded-nanogpt's own script"
        raise _bad(found.path, problem, way)
    held = size - _HEADER.size
    if num_tokens < 0 or num_tokens * dtype.itemsize != held:
        problem = (
            f"its header counts {num_tokens:,} tokens of {dtype.itemsize} bytes, but {held:,} "
            "bytes follow it; truncated or damaged"
        )
        raise _bad(found.path, problem, _AGAIN)
    return TokenFile(found.path, found.name, dtype, _HEADER.size, num_tokens)


def _megatron(found: TokenPath, size: int) -> TokenFile:
    if found.index is None:
        problem = "its index is missing (Megatron-LM's .bin needs the .idx beside it)"
        raise _bad(found.path, problem, f"put {found.path.stem}.idx into the same folder")
    index = read_index(found.index, size)
    num_tokens = size // index.dtype.itemsize
    return TokenFile(found.path, found.name, index.dtype, 0, num_tokens, index)


def _has_index(found: TokenPath, magic: int) -> bool:
    """Whether the `.idx` beside a file decides: it is one, or nothing else is known of it."""
    if found.index is None or magic not in _LLM_C:
        return found.index is not None
    with found.index.open("rb") as file:
        return file.read(len(INDEX_MAGIC)) == INDEX_MAGIC


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(
        f"{error.filename or path}: cannot be read ({error.strerror or error})",
        "make it readable, or leave it out",
    )
