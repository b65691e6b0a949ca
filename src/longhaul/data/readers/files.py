"""Files: text, JSON lines and whatever else by its name; what is broken is noted and skipped."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from longhaul.data.documents import MAX_LINE_BYTES, MAX_PIECE_BYTES, Breakage, Document
from longhaul.data.readers.archives import tar_documents, warc_documents
from longhaul.data.readers.formats import delimiter_of, format_of
from longhaul.data.readers.rows import (
    Broken,
    EndedEarly,
    decoded,
    field_in,
    refuse_utf16,
    row_document,
)
from longhaul.data.readers.streams import STREAM_ERRORS, FileStream, bounded_lines
from longhaul.data.readers.stretches import Stretch
from longhaul.data.readers.tables import arrow_rows, csv_rows, parquet_rows


def read_file(
    path: Path, name: str, text_field: str, breakage: Breakage, stretch: Stretch | None = None
) -> Iterator[Document]:
    """The documents of one file, called `name` in them and in messages, or of a `stretch` of it.

    Tables, JSON lines and JSON in a tar have the text in the field or column `text_field`; without
    a name of one, each row of JSON lines and Parquet is given whole, as a JSON object. `breakage`
    counts everything seen and everything skipped, and refuses too much of it.
    """
    breakage.num_seen += stretch is None or not stretch.begin
    try:
        breakage.num_bytes += (
            path.stat().st_size if stretch is None else stretch.end - stretch.begin
        )
        if format_of(name) == "parquet":
            yield from parquet_rows(path, name, text_field, breakage)
        elif format_of(name) == "arrow":
            yield from arrow_rows(path, name, text_field, breakage)
        else:
            with FileStream(path) as opened:
                if stretch is None:
                    yield from _of_stream(opened, name, text_field, breakage)
                else:
                    lines = enumerate(stretch.lines(opened.stream), 1 + stretch.lines_before)
                    yield from _json_lines(lines, name, text_field, breakage)
    except Broken as problem:
        breakage.broken(name, str(problem))
    except EndedEarly as problem:
        breakage.ended_early(name, str(problem), problem.damaged, problem.missing)
    except OSError as error:
        breakage.broken(name, f"cannot be read ({error.strerror or error})")


def _of_stream(
    opened: FileStream, name: str, text_field: str, breakage: Breakage
) -> Iterator[Document]:
    stream, kind = opened.stream, format_of(name)
    try:
        if kind == "json lines":
            lines = enumerate(bounded_lines(stream), 1)
            yield from _json_lines(lines, name, text_field, breakage)
        elif kind == "csv":
            yield from csv_rows(stream, name, text_field, delimiter_of(name), breakage)
        elif kind == "tar":
            yield from tar_documents(opened, name, text_field, breakage)
        elif kind == "warc":
            yield from warc_documents(opened, name, breakage)
        else:
            yield from _text(stream, name, breakage)
    except STREAM_ERRORS as error:
        if not opened.is_compressed and not isinstance(error, EOFError):
            raise
        if isinstance(error, EOFError) or "truncated" in str(error).lower():
            reason = "ends in the middle of its compressed data: it was truncated"
        else:
            reason = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise opened.ended_early(reason) from None


def _text(stream: BinaryIO, name: str, breakage: Breakage) -> Iterator[Document]:
    carried = b""
    number = 0
    while True:
        content = carried + stream.read(MAX_PIECE_BYTES - len(carried))
        at_end = len(content) < MAX_PIECE_BYTES
        end = len(content) if at_end else _piece_end(content)
        content, carried = content[:end], content[end:]
        if number == 0:
            content = content.removeprefix(b"\xef\xbb\xbf")
            refuse_utf16(content)
        if content:
            number += 1
            text = decoded(content)
            if text.isspace() and at_end and number == 1:
                number = 0
            else:
                yield Document(text, name if at_end and number == 1 else f"{name}#{number}")
        if at_end:
            break
    if number == 0:
        breakage.empty(name)


def _piece_end(content: bytes) -> int:
    """Where to cut: after the last line end, else before the last character that may be partial."""
    newline = content.rfind(b"\n")
    if newline >= 0:
        return newline + 1
    end = len(content) - 1
    while end > len(content) - 4 and content[end] & 0xC0 == 0x80:
        end -= 1
    return end


def _json_lines(
    lines: Iterator[tuple[int, bytes | None]], name: str, text_field: str, breakage: Breakage
) -> Iterator[Document]:
    for number, line in lines:
        if line is None or not line.isspace():
            value = partial(_field_of, line, number, text_field)
            yield from row_document(name, number, value, breakage)


def _field_of(line: bytes | None, number: int, text_field: str) -> Any:
    if line is None:
        raise Broken(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
        refuse_utf16(line)
    try:
        value = json.loads(decoded(line))
    except RecursionError:
        raise Broken("nested too deeply") from None
    except ValueError as error:
        raise Broken(f"not JSON ({error})") from None
    return field_in(value, text_field)
