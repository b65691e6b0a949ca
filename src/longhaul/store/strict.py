"""Values of a checkpoint's JSON with their types checked: it may come from anywhere.

Enters: a path, or a value that was parsed from JSON. Leaves: the value with its type checked,
or `RefusedCheckpoint`. Never knows: what the values are for. Nothing here runs code.
"""

from pathlib import Path
from typing import Any

from longhaul.core import strict
from longhaul.core.errors import LonghaulError
from longhaul.core.units import Bytes

MOST_JSON_BYTES: Bytes = 1 << 28
"""A checkpoint of 100,000 chunks describes itself in about 20 MB."""


class RefusedCheckpoint(LonghaulError):
    """A checkpoint that is damaged or not to be trusted; an older one may do."""


def read_bytes(path: Path) -> bytes:
    """The bytes of a file that describes a checkpoint.

    Raises:
        RefusedCheckpoint: it is absent, too large, or not a plain file.
    """
    try:
        return strict.read_bytes(path, MOST_JSON_BYTES)
    except strict.DamagedFile as damage:
        raise RefusedCheckpoint(damage.message) from None
    except OSError as error:
        raise RefusedCheckpoint(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path) -> Any:
    """The JSON value in `path`, strictly (`core.strict.parse_json`).

    Raises:
        RefusedCheckpoint: it is absent, too large, or no such JSON.
    """
    return parse_json(read_bytes(path), str(path))


def parse_json(content: bytes, name: str) -> Any:
    """The JSON value in `content`; `name` is what an error calls it.

    Raises:
        RefusedCheckpoint: it is no such JSON.
    """
    try:
        return strict.parse_json(content, name)
    except strict.DamagedFile as damage:
        raise RefusedCheckpoint(damage.message) from None


def table(value: Any, keys: set[str], what: str) -> dict[str, Any]:
    """`value` as an object with exactly these keys."""
    if not isinstance(value, dict) or value.keys() != keys:
        found = sorted(value) if isinstance(value, dict) else type(value).__name__
        raise RefusedCheckpoint(f"{what}: expected the keys {sorted(keys)}, found {found}")
    return value


def whole(value: Any, what: str) -> int:
    """`value` as a whole number that is not negative and fits 63 bits."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise RefusedCheckpoint(f"{what}: {value!r} is not a whole number in range")
    return value


def whole_numbers(value: Any, what: str) -> list[int]:
    """`value` as a list of whole numbers."""
    return [whole(item, what) for item in items(value, what)]


def items(value: Any, what: str) -> list[Any]:
    """`value` as a list."""
    if not isinstance(value, list):
        raise RefusedCheckpoint(f"{what}: expected a list, found {type(value).__name__}")
    return value


def text(value: Any, what: str) -> str:
    """`value` as a string."""
    if not isinstance(value, str):
        raise RefusedCheckpoint(f"{what}: {value!r} is not text")
    return value
