"""Streams: the bytes of a file, decompressed, and what its early end says of what is missing."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from longhaul.core.units import Bytes
from longhaul.data.documents import MAX_LINE_BYTES
from longhaul.data.readers.rows import EndedEarly

BUFFER_BYTES = 1 << 18
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_XZ = b"\xfd7zXZ\x00"
_BZ2, _BZ2_BLOCK = b"BZh", b"1AY&SY"
"""bzip2's three letters may begin a text; with the mark of a block behind the digit they do not."""

STREAM_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What reading a damaged or truncated stream raises."""


class FileStream:
    """A file's bytes, decompressed as its first bytes say: some servers unpack a `.gz` on the way,
    and some files are named wrongly.

    Reading raises one of `STREAM_ERRORS` where the file is damaged or ends early.
    """

    def __init__(self, path: Path) -> None:
        self._raw = path.open("rb", buffering=BUFFER_BYTES)
        self._whole_text: Bytes | None = None
        self._counted: _Counting | None = None
        self.size: Bytes = path.stat().st_size
        head = self._raw.read(18)
        self._raw.seek(0)
        self.is_compressed = True
        if head.startswith(_GZIP):
            self.stream = cast(BinaryIO, gzip.GzipFile(fileobj=self._raw))
        elif head.startswith(_XZ):
            self.stream = cast(BinaryIO, lzma.LZMAFile(self._raw))  # noqa: SIM115
        elif head.startswith(_BZ2) and head[4:].startswith(_BZ2_BLOCK):
            self.stream = cast(BinaryIO, bz2.BZ2File(self._raw))
        elif head.startswith(_ZSTD):
            # Not the `zstandard` package: its reader takes the end of a truncated file for the end
            # of the text, without a word (measured). Arrow's notices, and reads many frames.
            import pyarrow

            self._whole_text = _zstd_content(head)
            file = pyarrow.PythonFile(self._raw, "r")
            self._counted = _Counting(pyarrow.CompressedInputStream(file, "zstd"))
            self.stream = cast(BinaryIO, io.BufferedReader(self._counted, BUFFER_BYTES))
        else:
            self.stream = self._raw
            self.is_compressed = False

    def __enter__(self) -> "FileStream":
        return self

    def __exit__(self, *_: object) -> None:
        if self.stream is not self._raw:
            self.stream.close()
        self._raw.close()

    def ended_early(self, reason: str) -> EndedEarly:
        """What to raise where reading cannot go on: it counts what lies behind the damage, or what
        should follow if the file says how long its text is, or else all of it: the end of a gzip
        file that was cut says nothing, and one whose checksum differs may be wrong anywhere.
        """
        position = min(self._raw.tell(), self.size)
        if position < self.size:
            left = self.size - position
            return EndedEarly(f"{reason}; {left / self.size:.0%} of it is lost", left)
        num_read = self._counted.position if self._counted else 0
        if self._whole_text is None or not 0 < num_read < self._whole_text:
            unknown = "how much is lost is unknown, so all of it counts"
            return EndedEarly(f"{reason}; {unknown}", self.size)
        missing = int(self.size * (self._whole_text - num_read) / num_read)
        share = (self._whole_text - num_read) / self._whole_text
        return EndedEarly(f"{reason}; {share:.0%} of it is missing", 0, missing)


def _zstd_content(head: bytes) -> Bytes | None:
    """Size of the text of a first frame, where its header has it (RFC 8878, section 3.1.1.1)."""
    descriptor = head[4]
    flag, single = descriptor >> 6, descriptor >> 5 & 1
    begin = 5 + (0 if single else 1) + (0, 1, 2, 4)[descriptor & 3]
    length = (single, 2, 4, 8)[flag]
    if not length or len(head) < begin + length:
        return None
    return int.from_bytes(head[begin : begin + length], "little") + (256 if flag == 1 else 0)


class _Counting(io.RawIOBase):
    """What Arrow unpacks, counted."""

    def __init__(self, unpacked: Any) -> None:
        self._unpacked = unpacked
        self.position: Bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = int(self._unpacked.readinto(buffer))
        self.position += count
        return count


def bounded_lines(stream: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    """Lines with their line ends; None in place of a line longer than `limit` bytes.

    An over-long line is read past in pieces, so that memory stays at about twice the limit.
    """
    while line := stream.readline(limit + 1):
        if len(line) <= limit or line.endswith(b"\n"):
            yield line
            continue
        del line
        while (rest := stream.readline(BUFFER_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None
