"""Protocol-buffer messages, as far as reading one takes: fields by number, nothing trusted.

Enters: bytes. Leaves: field number and value, one after the other; values are views into the
bytes, so a message that lies about its lengths costs nothing.
Never knows: what the fields mean.
Source: "Encoding" in the Protocol Buffers documentation (wire types 0, 1, 2 and 5).
"""

import struct
from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | memoryview


class Malformed(ValueError):
    """The bytes are no message."""


def fields(content: memoryview) -> Iterator[tuple[int, Value]]:
    """Number and value of each field: an int for varints, else the field's bytes.

    Raises:
        Malformed: a length beyond the message, a field number 0, a group, an endless varint.
    """
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        number, wire = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise Malformed(f"field number {number} at byte {at:,}")
        if wire == 0:
            value, at = _varint(content, at)
            yield number, value
            continue
        if wire == 2:
            size, at = _varint(content, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise Malformed(f"wire type {wire} at byte {at:,}")
        if size > len(content) - at:
            raise Malformed(f"a field of {size:,} bytes, {len(content) - at:,} before the end")
        yield number, content[at : at + size]
        at += size


def as_bytes(value: Value) -> memoryview:
    """A field that must be a string, bytes or a message."""
    if isinstance(value, int):
        raise Malformed("a number where bytes belong")
    return value


def as_text(value: Value) -> str:
    """A field that must be a string."""
    try:
        return bytes(as_bytes(value)).decode()
    except UnicodeDecodeError:
        raise Malformed(f"a string that is not UTF-8 ({bytes(as_bytes(value))[:20]!r})") from None


def as_int(value: Value) -> int:
    """A field that must be an int32, int64, enum or bool."""
    if not isinstance(value, int):
        raise Malformed("bytes where a number belongs")
    return value - (1 << 64) if value >> 63 else value


def as_float(value: Value) -> float:
    """A field that must be a float."""
    if isinstance(value, int) or len(value) != 4:
        raise Malformed("no float where one belongs")
    number: float = struct.unpack("<f", value)[0]
    return number


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(content):
            raise Malformed("it ends within a number")
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise Malformed(f"a number of more than 10 bytes before byte {at:,}")
