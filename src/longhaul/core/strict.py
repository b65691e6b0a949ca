"""Reading files that nobody vouches for: a run's folder may come from anywhere. There are limits on
size and depth, and nothing in them is run.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from longhaul.core.errors import UsageError
from longhaul.core.units import Bytes, short_bytes

MOST_BYTES: Bytes = 4 << 20
"""Of a JSON or TOML file, and of a journal's line; 10,000 nodes open a segment with 300 kB."""
MOST_JOURNAL_BYTES: Bytes = 1 << 32
"""Of a file of lines; a journal begins another one after 64 MB."""
MOST_ENTRIES = 100_000
"""Segments of a run, files of its journal, leases: a hundred restarts a day for two years."""
_MOST_DEPTH = 64
_LONGEST_NUMBER = 20
"""Characters: what fits 64 bits, with its sign."""
_BLOCK_BYTES: Bytes = 1 << 16
_TOML_OPAQUE = re.compile(
    r'''"""(?:\\.|[^\\])*?(?:"""|\\?\Z)|'{3}.*?(?:'{3}|\Z)'''
    r"""|"(?:\\.|[^"\\\n])*+"?|'[^'\n]*+'?|\#[^\n]*+""",
    re.DOTALL,
)
"""Strings and comments. Each begin of one matches, closed or not: the search takes linear time."""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{_MOST_DEPTH}}}")


class DamagedFile(UsageError, ValueError):
    """A file that cannot be what it should be: damaged, or made to do harm. A `ValueError` too: who
    passes over a file that is no JSON passes over this one.
    """


def open_regular(path: Path, most: Bytes | None = None) -> BinaryIO:
    """Open a file to read, links followed; OSError if it cannot be, DamagedFile if it is a folder,
    a pipe, a device, or larger than it can be.
    """
    # Without it the opening of a pipe waits for somebody who writes into it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise DamagedFile(f"{path}: not a plain file", _REMEDY)
        if most is not None and found.st_size > most:
            raise DamagedFile(
                f"{path}: {short_bytes(found.st_size)}, and at most {short_bytes(most)} can "
                "belong there",
                _REMEDY,
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most: Bytes = MOST_BYTES) -> bytes:
    """The bytes of a plain file; errors as `open_regular`."""
    with open_regular(path, most) as file:
        # Asked for more than there is, Python sets all of it aside first.
        return file.read(min(most, os.fstat(file.fileno()).st_size + 1))


def read_json(path: Path, most: Bytes = MOST_BYTES) -> Any:
    """The JSON value in a file; errors as `open_regular` and `parse_json`."""
    return parse_json(read_bytes(path, most), str(path))


def read_object(path: Path, most: Bytes = MOST_BYTES) -> dict[str, Any]:
    """The JSON object in a file; errors as `read_json`."""
    value = read_json(path, most)
    if not isinstance(value, dict):
        raise DamagedFile(f"{path}: {type(value).__name__} where an object should be", _REMEDY)
    return value


def parse_json(content: bytes | str, name: str, *, check_numbers: bool = True) -> Any:
    """The JSON value in `content`; `name` is what an error calls it. Who checks numbers anyway need
    not pay for it twice. DamagedFile if it is no JSON, is nested deeply, or holds NaN, an infinity,
    a number beyond 64 bits or a key twice.
    """
    try:
        value = json.loads(
            content, parse_constant=_refuse_constant, object_pairs_hook=_unique,
            parse_int=_whole if check_numbers else None,
            parse_float=_finite if check_numbers else None,
        )  # fmt: skip
    except RecursionError:
        raise DamagedFile(f"{name}: nested too deeply", _REMEDY) from None
    except ValueError as error:
        raise DamagedFile(f"{name}: not the JSON it should be ({error})", _REMEDY) from None
    if is_deep(value):
        raise DamagedFile(f"{name}: nested too deeply", _REMEDY)
    return value


def read_toml(path: Path, most: Bytes = MOST_BYTES) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file, and its tables; errors as `open_regular` and `parse_toml`."""
    try:
        text = read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path}: not UTF-8 text ({error.reason})", _REMEDY) from None
    return text, parse_toml(text, str(path))


def parse_toml(text: str, name: str) -> dict[str, Any]:
    """The tables in a TOML text; `name` is what an error calls it. DamagedFile if it is no TOML, is
    nested deeply, or holds a whole number beyond 64 bits. Infinities and NaN belong to TOML: who
    checks its values says which setting is wrong.
    """
    # Looked at before it is parsed: tomllib takes the square of a dotted key's length.
    if _is_deep_toml(text):
        raise DamagedFile(f"{name}: nested too deeply", _REMEDY)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f"{name}: not TOML: {error}", _REMEDY) from None
    if is_deep(values):
        raise DamagedFile(f"{name}: nested too deeply", _REMEDY)
    holders: list[Any] = [values]
    while holders:
        holder = holders.pop()
        for item in holder.values() if isinstance(holder, dict) else holder:
            if isinstance(item, dict | list):
                holders.append(item)
            elif isinstance(item, int) and not -(1 << 63) <= item < 1 << 64:
                raise DamagedFile(f"{name}: holds a whole number beyond 64 bits", _REMEDY)
    return values


def bare_toml(text: str) -> str:
    """TOML without its comments, and with an `s` for each string: keys and brackets stay."""
    return _TOML_OPAQUE.sub(lambda found: "" if found[0][0] == "#" else "s", text)


def _is_deep_toml(text: str) -> bool:
    bare = bare_toml(text)
    depth = 0
    for bracket in re.finditer(r"[\[\]{}]", bare):
        depth = depth + 1 if bracket[0] in "[{" else max(0, depth - 1)
        if depth > _MOST_DEPTH:
            return True
    return _LONG_KEY.search(bare) is not None


def is_deep(value: Any) -> bool:
    """Whether tables and lists are nested more deeply than any of ours."""
    level = [value]
    for _ in range(_MOST_DEPTH):
        level = [
            item
            for holder in level
            if isinstance(holder, dict | list)
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list)
        ]
        if not level:
            return False
    return True


def lines_of(path: Path, most: Bytes = MOST_BYTES) -> Iterator[bytes]:
    """A plain file's lines with their ends; of a too long one the beginning. See `open_regular`."""
    with open_regular(path, MOST_JOURNAL_BYTES) as file:
        while line := file.readline(most):
            yield line
            # Of a line that is too long the rest is passed over, as it comes.
            while line and not line.endswith(b"\n"):
                line = file.readline(most)


def lines_after(
    path: Path, begin: Bytes, most: Bytes = MOST_BYTES
) -> Iterator[tuple[bytes, Bytes]]:
    """A plain file's whole lines from byte `begin` on, each with where it ends; of a too long one
    the beginning. What has no end yet is left for later. See `open_regular`.
    """
    with open_regular(path, MOST_JOURNAL_BYTES) as file:
        file.seek(begin)
        while rest := (line := file.readline(most)):
            while rest and not rest.endswith(b"\n"):
                rest = file.readline(most)
            if not rest:
                return
            yield line, file.tell()


def lines_backwards(path: Path, most: Bytes = MOST_BYTES) -> Iterator[bytes]:
    """The same from the end, without their ends; of one that is too long its last bytes only."""
    with open_regular(path, MOST_JOURNAL_BYTES) as file:
        position = file.seek(0, os.SEEK_END)
        pieces: list[bytes] = []  # of the line whose begin is still to come, last piece first
        while position:
            is_short = len(pieces) * _BLOCK_BYTES < most
            size = min(_BLOCK_BYTES if is_short else most, position)
            position = file.seek(position - size)
            first, *lines = file.read(size).split(b"\n")
            if lines:
                yield b"".join([lines.pop(), *reversed(pieces)])
                yield from reversed(lines)
                pieces = []
            if is_short or lines:
                pieces.append(first)
        yield b"".join(reversed(pieces))


def entries_of(folder: Path) -> list[str]:
    """The names in a folder, if there is one; a `DamagedFile` if more than a run can have."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    if len(names) > MOST_ENTRIES:
        many = f"{folder}: more than {MOST_ENTRIES:,} entries, and no run has as many"
        raise DamagedFile(many, _REMEDY)
    return names


def _whole(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0:
        raise ValueError(f"{digits[:20]} is beyond what a number can be")
    return number


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    if len(known) != len(pairs):
        raise ValueError("an object names a key twice")
    return known


_REMEDY = "put the file back as it was, from a copy or from checkpoint.remote, or leave this run"
