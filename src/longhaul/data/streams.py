"""Opening files that may be compressed, and reading them in bounded pieces.

Enters: a path. Leaves: a binary stream of the decompressed bytes, or lines of it.
Never knows: what the bytes mean.
"""

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from longhaul.data.documents import MAX_LINE_BYTES

_BUFFER_BYTES = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
COMPRESSED_SUFFIXES = (".gz", ".zst")


def open_stream(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed.

    The first bytes decide, not the name: some servers unpack a `.gz` on the way, and some files
    are named wrongly. Reading a truncated gzip or zstd file raises EOFError or OSError; damage
    raises OSError or zlib.error.
    """
    raw = path.open("rb", buffering=_BUFFER_BYTES)
    magic = raw.read(4)
    raw.seek(0)
    if magic.startswith(_GZIP_MAGIC):
        raw.close()
        return cast(BinaryIO, gzip.open(path, "rb"))
    if magic == _ZSTD_MAGIC:
        raw.close()
        # Not the `zstandard` package: its reader takes the end of a truncated file for the end of
        # the text, without a word (measured). Arrow's notices, and reads files of many frames.
        import pyarrow

        return cast(
            BinaryIO,
            io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"), _BUFFER_BYTES),
        )
    return raw


def bounded_lines(stream: BinaryIO, limit: int = MAX_LINE_BYTES) -> Iterator[bytes | None]:
    """Lines with their line ends; None in place of a line longer than `limit` bytes.

    An over-long line is read past in pieces, so that memory stays at about twice the limit.
    """
    while line := stream.readline(limit + 1):
        if len(line) <= limit or line.endswith(b"\n"):
            yield line
            continue
        del line
        while (rest := stream.readline(_BUFFER_BYTES)) and not rest.endswith(b"\n"):
            pass
        yield None
