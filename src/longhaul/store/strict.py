"""Reading JSON that nobody vouches for: a checkpoint may come from anywhere.

Enters: a path, or a value that was parsed from JSON. Leaves: the value with its type checked,
or `RefusedCheckpoint`. Never knows: what the values are for. Nothing here runs code.
"""

import json
from pathlib import Path
from typing import Any, NoReturn

from longhaul.core.errors import LonghaulError
from longhaul.core.units import Bytes, short_bytes

_MOST_JSON_BYTES: Bytes = 1 << 28
"""A checkpoint of 100,000 chunks describes itself in about 20 MB."""


class RefusedCheckpoint(LonghaulError):
    """A checkpoint that is damaged or not to be trusted; an older one may do."""


def read_json(path: Path) -> Any:
    """The JSON value in `path`, with no NaN, no duplicate key and no unbounded size.

    Raises:
        RefusedCheckpoint: it is absent, too large, or no such JSON.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > _MOST_JSON_BYTES:
            raise RefusedCheckpoint(
                f"{path}: {short_bytes(size_bytes)} is more than a description of tensors needs"
            )
        return parse_json(path.read_bytes(), str(path))
    except OSError as error:
        raise RefusedCheckpoint(f"{path}: cannot be read ({error.strerror})") from error


def parse_json(content: bytes, name: str) -> Any:
    """The JSON value in `content`; `name` is what an error calls it.

    Raises:
        RefusedCheckpoint: it is no JSON, or holds NaN, an infinity or a duplicate key.
    """
    try:
        return json.loads(content, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise RefusedCheckpoint(f"{name}: not the JSON it should be ({error})") from error


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


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict(pairs)
    if len(known) != len(pairs):
        raise ValueError("an object names a key twice")
    return known
