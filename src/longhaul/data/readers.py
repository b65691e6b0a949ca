"""Readers: one file in, compressed or not, its documents out, what is broken noted and skipped."""

import difflib
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from longhaul.data.documents import MAX_LINE_BYTES, MAX_PIECE_BYTES, Breakage, Document

_BUFFER_BYTES = 1 << 18
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
COMPRESSED_SUFFIXES = (".gz", ".zst")


def open_stream(path: Path) -> BinaryIO:
    """The bytes of a file, decompressed as its first bytes say: some servers unpack a `.gz` on the
    way, and some files are named wrongly.

    Reading a truncated gzip or zstd file raises EOFError or OSError; damage OSError or zlib.error.
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


Format = Literal["text", "json lines", "parquet"]

TEXT_SUFFIXES = frozenset({
    ".txt", ".text", ".md", ".rst", ".tex", ".org", ".adoc", ".html", ".htm", ".xml",
    ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh", ".rs", ".go",
    ".java", ".kt", ".scala", ".js", ".jsx", ".ts", ".tsx", ".css", ".rb", ".php", ".pl", ".pm",
    ".lua", ".r", ".jl", ".hs", ".ml", ".ex", ".erl", ".clj", ".lisp", ".el", ".scm", ".swift",
    ".cs", ".fs", ".sh", ".bash", ".zsh", ".sql", ".f90", ".f", ".asm", ".s", ".v", ".vhd",
    ".toml", ".yaml", ".yml", ".ini", ".cfg", ".cmake",
})  # fmt: skip
_LINE_SUFFIXES = (".jsonl", ".ndjson", ".json")
_PARQUET_SUFFIX = ".parquet"
_ROWS_AT_ONCE = 64
TOKEN_SUFFIXES = (".bin", ".idx")
"""Tokens made elsewhere (`token_files.py`); no reader here takes them."""

KNOWN_FORMATS = (
    "longhaul reads .txt and other text (.md, .rst, .py, .c, …) and .jsonl, each also as .gz or "
    ".zst, .parquet, and tokens in .bin (data.sources.format)"
)


class _Broken(Exception):
    """A file, line or row is no document; the message says why."""


def format_of(name: str) -> Format | None:
    """Which reader takes a file of this name; None if none does."""
    path = Path(name.lower())
    packed = path.suffix in COMPRESSED_SUFFIXES
    suffix = Path(path.stem).suffix if packed else path.suffix
    if suffix in _LINE_SUFFIXES:
        return "json lines"
    if suffix in TEXT_SUFFIXES:
        return "text"
    return "parquet" if suffix == _PARQUET_SUFFIX and not packed else None


def taken_from_folder(name: str) -> bool:
    """Whether a file found in a folder belongs to the corpus: a bare `.json` is JSON lines when it
    is named directly, and in a folder nearly always a settings file.
    """
    return format_of(name) is not None and not name.lower().endswith(".json")


def suffix_advice(name: str) -> str:
    """What to do about a file that no reader takes."""
    suffix = Path(name).suffix.lower()
    known = [*TEXT_SUFFIXES, *_LINE_SUFFIXES, _PARQUET_SUFFIX]
    near = difflib.get_close_matches(suffix, known, 1, 0.7) if suffix else []
    nearest = f" (did you mean {near[0]}?)" if near else ""
    return f"{KNOWN_FORMATS}{nearest}; give plain text the name {Path(name).stem}.txt"


def read_file(
    path: Path, name: str, text_field: str | None, breakage: Breakage
) -> Iterator[Document]:
    """The documents of one file, called `name` in them and in messages.

    JSON lines and Parquet have the text in the field or column `text_field`; with None, a line or
    row is given whole, as a JSON object. `breakage` counts everything seen and everything skipped,
    and refuses too much of it.
    """
    breakage.num_seen += 1
    kind = format_of(name)
    try:
        if kind == "parquet":
            yield from _parquet_rows(path, name, text_field, breakage)
            return
        with open_stream(path) as stream:
            if kind == "json lines":
                yield from _json_lines(stream, name, text_field, breakage)
            else:
                yield from _text(stream, name, breakage)
    except _Broken as problem:
        breakage.broken(name, str(problem))
    except EOFError:
        breakage.broken(name, "ends in the middle of its compressed data; it was truncated")
    except (OSError, zlib.error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        breakage.broken(name, f"cannot be read ({reason})")


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
            _refuse_utf16(content)
        if content:
            number += 1
            text = _decoded(content)
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


def _row(
    name: str, number: int, value: Callable[[], Any], breakage: Breakage
) -> Iterator[Document]:
    breakage.num_seen += 1
    try:
        text = _checked(value())
    except (_Broken, UnicodeDecodeError) as problem:
        breakage.broken(name, str(problem), number)
        return
    if not text or text.isspace():
        breakage.empty(f"{name}:{number}")
        return
    yield Document(text, f"{name}:{number}")


def _json_lines(
    stream: BinaryIO, name: str, text_field: str | None, breakage: Breakage
) -> Iterator[Document]:
    for number, line in enumerate(bounded_lines(stream), 1):
        if line is None or not line.isspace():
            yield from _row(name, number, partial(_field_of, line, number, text_field), breakage)


def _field_of(line: bytes | None, number: int, text_field: str | None) -> Any:
    if line is None:
        raise _Broken(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    if number == 1:
        line = line.removeprefix(b"\xef\xbb\xbf")
        _refuse_utf16(line)
    try:
        value = json.loads(_decoded(line))
    except RecursionError:
        raise _Broken("nested too deeply") from None
    except ValueError as error:
        raise _Broken(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise _Broken(f"not a JSON object but {_shown(value)}; every line must be one")
    if text_field is None:
        return line.decode()
    if text_field not in value:
        fields = ", ".join(list(value)[:8]) or "none"
        raise _Broken(f"no field {text_field!r} (data.sources.text_field); its fields: {fields}")
    return value[text_field]


def _parquet_rows(
    path: Path, name: str, text_field: str | None, breakage: Breakage
) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if text_field is not None and text_field not in columns:
                raise _Broken(
                    f"no column {text_field!r} (data.sources.text_field); "
                    f"its columns: {', '.join(columns[:8]) or 'none'}"
                )
            wanted = None if text_field is None else [text_field]
            for batch in file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=wanted):
                rows = batch.to_struct_array() if text_field is None else batch.column(0)
                for scalar in rows:
                    number += 1
                    value = partial(_whole_row, scalar) if text_field is None else scalar.as_py
                    yield from _row(name, number, value, breakage)
    except (pyarrow.ArrowException, OSError) as error:
        first_line = str(error).partition("\n")[0]
        raise _Broken(f"cannot be read as Parquet ({first_line})") from None
    if number == 0:
        breakage.empty(name)


def _whole_row(scalar: Any) -> str:
    return json.dumps(scalar.as_py(), ensure_ascii=False, default=str)


def _decoded(content: bytes) -> str:
    # NUL is valid UTF-8, but no text has it; a file that has it is not "in another encoding".
    if (at := content.find(b"\0")) >= 0:
        raise _Broken(f"binary, not text (NUL byte at {at:,})")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _Broken(
            f"not UTF-8 (byte 0x{content[error.start]:02x} at {error.start:,}); "
            "binary, or another encoding such as latin-1?"
        ) from None


def _refuse_utf16(content: bytes) -> None:
    head = content[:1000]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        len(head) >= 8 and 0.3 < head.count(0) / len(head) < 0.6 and not (head[0] and head[1])
    ):
        raise _Broken("UTF-16, not UTF-8; convert it with iconv -f UTF-16 -t UTF-8")


def _checked(value: Any) -> str:
    """The text, if it is a string that UTF-8 can hold and that fits in memory."""
    if not isinstance(value, str):
        raise _Broken(f"the text is no string but {_shown(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise _Broken(f"half of a surrogate pair at character {error.start:,}") from None
    if len(value) > MAX_LINE_BYTES:
        raise _Broken(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:39] + '…'}"
