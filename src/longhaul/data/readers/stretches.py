"""Stretches of a large file of JSON lines, whole lines each, which several workers read at once."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from longhaul.core.units import Bytes
from longhaul.data.readers.formats import format_of
from longhaul.data.readers.streams import BUFFER_BYTES, FileStream, bounded_lines

STRETCH_BYTES: Bytes = 64_000_000
"""After so much the next line begins another one, whoever reads them: names and order stay."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Lines of a file that begin in it."""

    begin: Bytes
    end: Bytes
    lines_before: int = 0

    def lines(self, stream: BinaryIO) -> Iterator[bytes | None]:
        """As `bounded_lines`, of these alone."""
        stream.seek(self.begin)
        lines = bounded_lines(stream)
        while stream.tell() < self.end:
            yield next(lines)


def stretches_of(path: Path, name: str) -> list[Stretch]:
    """Those of a file, their `lines_before` not counted yet; none if it is read in one go."""
    size = path.stat().st_size
    if size < 2 * STRETCH_BYTES or format_of(name) != "json lines":
        return []
    found, begin = [], 0
    with FileStream(path) as opened:
        if opened.is_compressed:
            return []
        while size - begin >= 2 * STRETCH_BYTES:
            end = _next_line(opened.stream, begin + STRETCH_BYTES)
            found.append(Stretch(begin, end))
            begin = end
    return [*found, Stretch(begin, size)] if begin < size else found


def count_lines(path: Path, stretch: Stretch) -> int:
    """Line ends in a stretch."""
    count, left = 0, stretch.end - stretch.begin
    with path.open("rb") as file:
        file.seek(stretch.begin)
        while left > 0 and (content := file.read(min(left, BUFFER_BYTES))):
            count += content.count(b"\n")
            left -= len(content)
    return count


def _next_line(stream: BinaryIO, position: Bytes) -> Bytes:
    """Where the first line begins that does so behind this byte."""
    stream.seek(position)
    while (content := stream.readline(BUFFER_BYTES)) and not content.endswith(b"\n"):
        pass
    return stream.tell()
