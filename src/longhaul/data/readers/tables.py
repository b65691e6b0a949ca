"""Tables: Parquet, Arrow and delimited text, a document a row; only a few rows are held at once."""

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from longhaul.core.units import Bytes
from longhaul.data.documents import MAX_LINE_BYTES, Breakage, Document
from longhaul.data.readers.rows import (
    Broken,
    EndedEarly,
    column_in,
    decoded,
    refuse_utf16,
    row_document,
    whole_row,
)
from longhaul.data.readers.streams import bounded_lines

_ROWS_AT_ONCE = 64
_ARROW_FILE = b"ARROW1"


def parquet_rows(path: Path, name: str, text_field: str, breakage: Breakage) -> Iterator[Document]:
    """The rows of a Parquet file; whole ones without a `text_field`."""
    import pyarrow
    from pyarrow import parquet

    size, number, num_rows = path.stat().st_size, 0, 0
    try:
        with parquet.ParquetFile(path) as file:
            num_rows = file.metadata.num_rows
            if text_field:
                _named(file.schema_arrow.names, text_field, size)
            columns = [text_field] if text_field else None
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=columns):
                for scalar in batch.column(0) if text_field else batch.to_struct_array():
                    number += 1
                    value = scalar.as_py() if text_field else whole_row(scalar.as_py())
                    yield from _value(name, number, value, breakage)
    except (pyarrow.ArrowException, OSError) as error:
        # Without its end, where the list of its rows is, none of a file can be read.
        lost = int(size * (num_rows - number) / num_rows) if num_rows else size
        raise _unreadable("Parquet", error, lost) from None
    if number == 0:
        breakage.empty(name)


def arrow_rows(path: Path, name: str, text_field: str, breakage: Breakage) -> Iterator[Document]:
    """The rows of an Arrow file (Feather V2), or of a stream as Hugging Face's `datasets` keeps."""
    import pyarrow
    from pyarrow import ipc

    size, number = path.stat().st_size, 0
    lost = size
    try:
        with pyarrow.OSFile(str(path)) as file:
            is_file = file.read(len(_ARROW_FILE)) == _ARROW_FILE
            file.seek(0)
            opened = ipc.open_file(file) if is_file else ipc.open_stream(file)
            column = _named(opened.schema.names, text_field, size)
            batches = map(opened.get_batch, range(opened.num_record_batches)) if is_file else opened
            for batch in batches:
                # A stream does not say how many batches should follow.
                lost = size - file.tell() if is_file else size
                for scalar in batch.column(column):
                    number += 1
                    yield from _value(name, number, scalar.as_py(), breakage)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unreadable("Arrow", error, lost) from None
    if number == 0:
        breakage.empty(name)


def _named(columns: list[str], text_field: str, size: Bytes) -> int:
    try:
        return column_in(columns, text_field)
    except Broken as problem:
        raise EndedEarly(str(problem), size) from None


def _value(name: str, number: int, value: Any, breakage: Breakage) -> Iterator[Document]:
    # A null is how a nullable column says that there is no text.
    yield from row_document(name, number, lambda: "" if value is None else value, breakage)


def _unreadable(kind: str, error: Exception, lost: Bytes) -> EndedEarly:
    first_line = str(error).partition("\n")[0]
    return EndedEarly(f"cannot be read as {kind} ({first_line})", lost)


def csv_rows(
    stream: BinaryIO, name: str, text_field: str, delimiter: str, breakage: Breakage
) -> Iterator[Document]:
    """The rows of delimited text below its line of titles (RFC 4180): `a.csv:1` is the first."""
    csv.field_size_limit(MAX_LINE_BYTES)
    rows = csv.reader(_lines(stream, name, breakage), delimiter=delimiter, strict=True)
    number = 0
    titles = [_text(title) for title in next(rows, [])]
    if not titles:
        breakage.empty(name)
        return
    column = column_in(titles, text_field)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            number += 1
            breakage.num_seen += 1
            breakage.broken(name, f"not a row of a table ({error})", number)
            continue
        if row:
            number += 1
            value = partial(_cell, row, column, len(titles))
            yield from row_document(name, number, value, breakage)


def _lines(stream: BinaryIO, name: str, breakage: Breakage) -> Iterator[str]:
    for number, line in enumerate(bounded_lines(stream), 1):
        if line is None:
            breakage.num_seen += 1
            breakage.broken(name, f"line {number:,} is longer than {MAX_LINE_BYTES >> 20} MiB")
            continue
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
            refuse_utf16(line)
        # A row is refused by its own column only: others may hold anything.
        yield line.decode(errors="surrogateescape")


def _cell(row: list[str], column: int, width: int) -> str:
    if len(row) != width:
        raise Broken(f"{len(row):,} columns where the line of titles has {width:,}")
    return _text(row[column])


def _text(value: str) -> str:
    return decoded(value.encode(errors="surrogateescape"))
