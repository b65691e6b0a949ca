"""Files of tokens made elsewhere: nanoGPT's, llm.c's and Megatron-LM's.

Enters: a path and the format it is said to have. Leaves: its tokens in bounded pieces, every
figure in a header checked against the file's size first. Files are read, not mapped: one that
somebody cuts short meanwhile is an error and no bus error.
Never knows: vocabularies, documents by end-of-text, shards (`pretokenized.py`).

Formats, little-endian:

    nanogpt   uint16 tokens and nothing else (`data/*/prepare.py`)
    llm.c     256 × int32: magic 20240520, version 1, number of tokens, zeros; uint16 tokens.
              Magic 20240801, version 7 for uint32 (`dev/data/data_common.py`); modded-nanogpt
              uses the first
    megatron  tokens in `.bin`, everything else in `.idx` (`megatron.py`)
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from longhaul.core.errors import DataError
from longhaul.data.megatron import INDEX_MAGIC, MegatronIndex, read_index
from longhaul.data.tokenizing import TokenArray

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
    """A file of tokens, found but not opened.

    Attributes:
        path: the `.bin`.
        name: its name within the source.
        kind: `auto`, `nanogpt`, `llm.c` or `megatron`.
        index: Megatron's `.idx`, where there is one.
    """

    path: Path
    name: str
    kind: str
    index: Path | None


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens whose header was checked.

    Attributes:
        path: the file.
        name: its name within the source.
        dtype: of a token.
        begin: bytes before the first token.
        num_tokens: all of them are in the file.
        index: where Megatron's documents end; None where the format does not say.
    """

    path: Path
    name: str
    dtype: np.dtype[Any]
    begin: int
    num_tokens: int
    index: MegatronIndex | None = None

    def pieces(self) -> Iterator[tuple[int, TokenArray]]:
        """Position and tokens of one piece after the other, each as long as may be held at once.

        Where the format knows documents, a piece never holds parts of two.

        Raises:
            DataError: the file has become shorter, or cannot be read.
        """
        try:
            with self.path.open("rb") as file:
                file.seek(self.begin)
                begin = 0
                for end in self._ends():
                    while begin < end:
                        count = min(end - begin, MAX_PIECE_TOKENS)
                        yield begin, self._read(file, count)
                        begin += count
        except OSError as error:
            raise _unreadable(self.path, error) from None

    def _ends(self) -> Iterator[int]:
        return iter([self.num_tokens]) if self.index is None else self.index.document_ends()

    def _read(self, file: BinaryIO, count: int) -> TokenArray:
        content = file.read(count * self.dtype.itemsize)
        if len(content) != count * self.dtype.itemsize:
            raise DataError(
                f"{self.path}: it became shorter while it was read",
                "start again once nothing writes to it",
            )
        return np.frombuffer(content, self.dtype)


def open_token_file(found: TokenPath) -> TokenFile:
    """Read and check a file's header.

    Raises:
        DataError: not of this format, truncated, or its header cannot be true.
    """
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
        raise DataError(
            f"{path}: llm.c's file of multiple-choice questions (magic {magic}), not a corpus",
            "give the .bin of a corpus",
        )
    begins = f"it begins with {head[:8]!r}"
    if found.kind == "auto":
        raise DataError(f"{path}: tokens of an unknown format ({begins})", _DECLARE)
    raise DataError(f"{path}: not llm.c's format ({begins})", _DECLARE)


def _nanogpt(found: TokenPath, magic: int, size: int) -> TokenFile:
    if magic in _LLM_C or magic == _EVALUATION_MAGIC:
        # As tokens the first would be 55,448 or more, which no vocabulary of nanoGPT's has.
        raise DataError(
            f"{found.path}: said to be nanoGPT's, but it begins with llm.c's magic {magic}",
            'set format = "llm.c" for this source',
        )
    if size == 0:
        raise DataError(f"{found.path}: empty", _AGAIN)
    if size % 2:
        raise DataError(
            f"{found.path}: {size:,} bytes, which is no whole number of uint16 tokens; truncated?",
            _AGAIN,
        )
    return TokenFile(found.path, found.name, np.dtype("<u2"), 0, size // 2)


def _llm_c(found: TokenPath, magic: int, head: bytes, size: int) -> TokenFile:
    if len(head) < _HEADER.size:
        raise DataError(f"{found.path}: truncated at {size:,} bytes, inside its header", _AGAIN)
    _, version, num_tokens, *_ = _HEADER.unpack(head)
    expected_version, dtype = _LLM_C[magic]
    if version != expected_version:
        raise DataError(
            f"{found.path}: llm.c version {version}; with magic {magic} it is {expected_version}",
            "make the file with llm.c's or modded-nanogpt's own script",
        )
    held = size - _HEADER.size
    if num_tokens < 0 or num_tokens * dtype.itemsize != held:
        raise DataError(
            f"{found.path}: its header counts {num_tokens:,} tokens of {dtype.itemsize} bytes, but "
            f"{held:,} bytes follow it; truncated or damaged",
            _AGAIN,
        )
    return TokenFile(found.path, found.name, dtype, _HEADER.size, num_tokens)


def _megatron(found: TokenPath, size: int) -> TokenFile:
    if found.index is None:
        raise DataError(
            f"{found.path}: its index is missing (Megatron-LM's .bin needs the .idx beside it)",
            f"put {found.path.stem}.idx into the same folder",
        )
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
