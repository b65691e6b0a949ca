"""Shards: files of tokens with the documents they came from, mapped into memory for training.

Layout, little-endian:

    0     magic  b"LHSHARD\\n"
    8     uint32 version, uint32 zero
    16    SHA-256 of the rest of the header and all before it (32 bytes)
    48    JSON padded with spaces to 4,096: dtype, num_tokens, num_documents, num_bytes,
          tokenizer_sha256, sections {name: [offset, bytes]}, payload_sha256
    4096  payload, each section padded with zeros to 8 bytes:
          tokens          num_tokens × uint16 or uint32
          document_ends   num_documents × uint64, token position after each document
          document_bytes  num_documents × uint64, UTF-8 bytes of each document's text
          name_ends       num_documents × uint64, position after each name in `names`
          names           UTF-8
"""

import hashlib
import json
import mmap
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError
from longhaul.core.files import write_atomically
from longhaul.core.strict import open_regular, parse_json
from longhaul.data.tokenizing import TokenArray

STREAM = "stream.json"
"""In a prepared folder whose shards to train on are elsewhere; see `streaming.py`."""
SHARD_VERSION = 1
MAX_SHARD_TOKENS = 64 << 20
"""A shard is closed at this size: at most 128 MB (256 MB with uint32) are held while writing."""
MAX_SHARD_DOCUMENTS = 1 << 20

_MAGIC = b"LHSHARD\n"
HEADER_BYTES = 4096
_PREFIX = struct.Struct("<8sI4x32s")
_SECTIONS = ("tokens", "document_ends", "document_bytes", "name_ends", "names")
_DAMAGED = "delete the folder and prepare the data again"
_CHUNK_BYTES = 1 << 22

Offsets = npt.NDArray[np.uint64]


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest of uint16 and uint32 that holds every token number."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """What the header of a shard says that its text is read without."""

    num_tokens: int
    num_documents: int
    num_bytes: int
    tokenizer_sha256: str


class AnyShard(Protocol):
    """A shard that is here, or comes when it is read (`streaming.py`)."""

    @property
    def path(self) -> Path:
        """Of its file, which need not be there."""

    @property
    def num_tokens(self) -> int:
        """Tokens, end-of-text included."""

    @property
    def num_documents(self) -> int:
        """Documents."""

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of text, or 0."""

    @property
    def tokenizer_sha256(self) -> str:
        """Of the tokenizer."""

    @property
    def tokens(self) -> TokenArray:
        """[num_tokens]."""

    @property
    def document_ends(self) -> Offsets:
        """[num_documents]."""

    def name(self, document: int) -> str:
        """Where a document came from."""


class ShardWriter:
    """Writes documents to `STEM-00000.shard`, `STEM-00001.shard`, … in one folder; the first
    document that reaches `max_tokens` closes a shard.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        vocab_size: int,
        tokenizer_sha256: str,
        max_tokens: int = MAX_SHARD_TOKENS,
    ) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        self._stem = stem
        self._vocab_size = vocab_size
        self._dtype = dtype_for(vocab_size)
        self._tokenizer_sha256 = tokenizer_sha256
        self._max_tokens = max_tokens
        self._start()

    def _start(self) -> None:
        self._tokens = bytearray()
        self._names = bytearray()
        self._documents = array("Q")
        """Of each the position after its tokens, its bytes, and the position after its name."""

    def add(self, name: str, tokens: TokenArray, num_bytes: int) -> None:
        """Append one document unless it has no tokens; ValueError if one is no token number."""
        if not len(tokens):
            return
        negative = tokens.dtype.kind != "u" and int(tokens.min()) < 0
        if negative or int(tokens.max()) >= self._vocab_size:
            raise ValueError(
                f"{name}: token {tokens.max()} beyond a vocabulary of {self._vocab_size}"
            )
        self._tokens += tokens.astype(self._dtype).tobytes()
        self._names += name.encode(errors="replace")
        end = len(self._tokens) // self._dtype.itemsize
        self._documents.extend((end, num_bytes, len(self._names)))
        if end >= self._max_tokens or len(self._documents) >= 3 * MAX_SHARD_DOCUMENTS:
            self._flush()

    def close(self) -> list[Path]:
        """Write what is left and return every shard's path, in order of the tokens."""
        if self._documents:
            self._flush()
        return self.paths

    def _flush(self) -> None:
        figures = np.array(self._documents, "<u8").reshape(-1, 3).T
        parts: list[bytes | bytearray] = [self._tokens, *map(bytes, figures), self._names]
        payload = [piece for part in parts for piece in (part, _padding(len(part)))]
        num_tokens, num_documents = int(figures[0, -1]), figures.shape[1]
        sections = _layout(num_tokens, self._dtype.itemsize, num_documents, len(self._names))
        digest = hashlib.sha256()
        for piece in payload:
            digest.update(piece)
        header = _header(
            {
                "dtype": self._dtype.name,
                "num_tokens": num_tokens,
                "num_documents": num_documents,
                "num_bytes": int(figures[1].sum()),
                "tokenizer_sha256": self._tokenizer_sha256,
                "sections": sections,
                "payload_sha256": digest.hexdigest(),
            }
        )

        path = self._folder / f"{self._stem}-{len(self.paths):05d}.shard"
        write_atomically(path, lambda file: file.writelines([header, *payload]))
        self.paths.append(path)
        self._start()


class Shard:
    """One shard, mapped into memory; opening reads its header only. Its arrays are read-only and of
    the layout's shapes. DataError if it is no shard, torn, damaged, or of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_regular(path) as file:
                head = file.read(HEADER_BYTES)
                size = file.seek(0, 2)
                header = _checked_header(path, head, size)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{path}: cannot be opened ({error.strerror})", _DAMAGED) from None
        self.num_tokens: int = header["num_tokens"]
        self.num_documents: int = header["num_documents"]
        self.num_bytes: int = header["num_bytes"]
        self.dtype = np.dtype(header["dtype"])
        self.tokenizer_sha256: str = header["tokenizer_sha256"]
        self._mapped = mapped
        self._sections: dict[str, list[int]] = header["sections"]
        self._payload_sha256: str = header["payload_sha256"]
        self.tokens: TokenArray = self._section("tokens", self.dtype)
        self.document_ends: Offsets = self._section("document_ends", np.dtype("<u8"))
        self.document_bytes: Offsets = self._section("document_bytes", np.dtype("<u8"))
        self._name_ends: Offsets = self._section("name_ends", np.dtype("<u8"))

    def _section(self, name: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        offset, size = self._sections[name]
        return np.frombuffer(self._mapped, dtype, size // dtype.itemsize, offset)

    def name(self, document: int) -> str:
        """Where document number `document` (0 to num_documents - 1) came from."""
        offset, _ = self._sections["names"]
        begin = int(self._name_ends[document - 1]) if document else 0
        end = int(self._name_ends[document])
        return self._mapped[offset + begin : offset + end].decode(errors="replace")

    def documents(self) -> Iterator[tuple[str, TokenArray, int]]:
        """Name, tokens and UTF-8 bytes of every document, in order."""
        begin = 0
        for number in range(self.num_documents):
            end = int(self.document_ends[number])
            yield self.name(number), self.tokens[begin:end], int(self.document_bytes[number])
            begin = end

    def verify(self) -> None:
        """Read everything and compare it with the header's checksum; DataError if it differs."""
        digest = hashlib.sha256()
        view = memoryview(self._mapped)
        for begin in range(HEADER_BYTES, len(view), _CHUNK_BYTES):
            digest.update(view[begin : begin + _CHUNK_BYTES])
        if digest.hexdigest() != self._payload_sha256:
            raise DataError(f"{self.path}: its bytes do not match its checksum", _DAMAGED)


def facts_of(path: Path, head: bytes, size: int) -> ShardFacts:
    """What the first `HEADER_BYTES` of a shard of a size say; errors as of `Shard`."""
    header = _checked_header(path, head, size)
    return ShardFacts(
        header["num_tokens"], header["num_documents"], header["num_bytes"],
        header["tokenizer_sha256"],
    )  # fmt: skip


def _padding(size: int) -> bytes:
    return bytes(-size % 8)


def _layout(
    num_tokens: int, itemsize: int, num_documents: int, name_bytes: int
) -> dict[str, list[int]]:
    """Offset and size of every section, in the order they lie in the file."""
    offsets = 8 * num_documents
    sizes = (num_tokens * itemsize, offsets, offsets, offsets, name_bytes)
    layout = {}
    position = HEADER_BYTES
    for name, size in zip(_SECTIONS, sizes, strict=True):
        layout[name] = [position, size]
        position += size + len(_padding(size))
    return layout


def _header(facts: dict[str, Any]) -> bytes:
    body = json.dumps(facts).encode().ljust(HEADER_BYTES - _PREFIX.size)
    return _PREFIX.pack(_MAGIC, SHARD_VERSION, _header_digest(SHARD_VERSION, body)) + body


def _header_digest(version: int, body: bytes) -> bytes:
    return hashlib.sha256(_PREFIX.pack(_MAGIC, version, bytes(32)) + body).digest()


def _checked_header(path: Path, head: bytes, size: int) -> dict[str, Any]:
    """The header's facts; nothing is mapped or allocated before all of them fit the file."""
    if not head.startswith(_MAGIC):
        raise DataError(f"{path}: not a shard (it begins with {head[:8]!r})", _DAMAGED)
    if len(head) < HEADER_BYTES:
        raise DataError(f"{path}: truncated at {size:,} bytes, inside its header", _DAMAGED)
    _, version, digest = _PREFIX.unpack_from(head)
    body = head[_PREFIX.size :]
    genuine = _PREFIX.pack(_MAGIC, version, digest) + body == head
    # The version comes first: only this version's header is known to have its checksum there.
    if version != SHARD_VERSION:
        raise DataError(
            f"{path}: shard version {version}; this longhaul reads {SHARD_VERSION}",
            "use the longhaul that wrote it, or prepare the data again",
        )
    if not genuine or _header_digest(version, body) != digest:
        raise DataError(f"{path}: its header is damaged (checksum)", _DAMAGED)
    try:
        facts: dict[str, Any] = parse_json(body, str(path))
        dtype = {"uint16": 2, "uint32": 4}[facts["dtype"]]
        counts = [facts[key] for key in ("num_tokens", "num_documents", "num_bytes")]
        offset, name_bytes = facts["sections"]["names"]
        if not all(isinstance(value, int) and value >= 0 for value in [*counts, name_bytes]):
            raise ValueError("a count is no count")
        if facts["sections"] != _layout(counts[0], dtype, counts[1], name_bytes):
            raise ValueError("its sections are not where they belong")
        if not isinstance(facts["tokenizer_sha256"] + facts["payload_sha256"], str):
            raise TypeError("a hash is no hash")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: its header is absurd ({error})", _DAMAGED) from None
    expected = offset + name_bytes + len(_padding(name_bytes))
    if size != expected:
        raise DataError(f"{path}: {size:,} bytes long instead of {expected:,}", _DAMAGED)
    return facts
