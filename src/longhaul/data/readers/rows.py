"""Rows: one value of a table, line or archive made a document, or counted as broken or empty."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from longhaul.core.units import Bytes
from longhaul.data.documents import MAX_LINE_BYTES, Breakage, Document


class Broken(Exception):
    """A file, line or row is no document; the message says why."""


class EndedEarly(Exception):
    """A file cannot be read from here on; the message says why."""

    def __init__(self, reason: str, damaged: Bytes, missing: Bytes = 0) -> None:
        super().__init__(reason)
        self.damaged = damaged
        """Bytes on disk that are lost; all of them where nobody can know how many should follow."""
        self.missing = missing
        """Bytes that should follow, where that is known."""


def row_document(
    name: str, number: int, value: Callable[[], Any], breakage: Breakage
) -> Iterator[Document]:
    """The document of row or line `number`, from 1, if it is one."""
    breakage.num_seen += 1
    try:
        text = checked(value())
    except (Broken, UnicodeDecodeError) as problem:
        breakage.broken(name, str(problem), number)
        return
    if not text or text.isspace():
        breakage.empty(f"{name}:{number}")
        return
    yield Document(text, f"{name}:{number}")


def checked(value: Any) -> str:
    """The text, if it is a string that UTF-8 can hold and that fits in memory; else Broken."""
    if not isinstance(value, str):
        raise Broken(f"the text is no string but {shown(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Broken(f"half of a surrogate pair at character {error.start:,}") from None
    if len(value) > MAX_LINE_BYTES:
        raise Broken(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    return value


def field_in(value: Any, text_field: str) -> Any:
    """The text of a JSON object, all of it without a name; Broken if it has no such field."""
    if not isinstance(value, dict):
        raise Broken(f"not a JSON object but {shown(value)}; every line must be one")
    if not text_field:
        return whole_row(value)
    if text_field not in value:
        fields = ", ".join(list(value)[:8]) or "none"
        raise Broken(f"no field {text_field!r} (data.sources.text_field); its fields: {fields}")
    return value[text_field]


def whole_row(value: dict[str, Any]) -> str:
    """A row with all its fields, as JSON."""
    return json.dumps(value, default=str)


def column_in(columns: list[str], text_field: str) -> int:
    """Where the column is; Broken if there is none."""
    if text_field not in columns:
        raise Broken(
            f"no column {text_field!r} (data.sources.text_field); "
            f"its columns: {', '.join(columns[:8]) or 'none'}"
        )
    return columns.index(text_field)


def decoded(content: bytes) -> str:
    """UTF-8; Broken if it is none, or binary."""
    # NUL is valid UTF-8, but no text has it; a file that has it is not "in another encoding".
    if (at := content.find(b"\0")) >= 0:
        raise Broken(f"binary, not text (NUL byte at {at:,})")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Broken(
            f"not UTF-8 (byte 0x{content[error.start]:02x} at {error.start:,}); "
            "binary, or another encoding such as latin-1?"
        ) from None


def refuse_utf16(content: bytes) -> None:
    """Broken if a file's first bytes are UTF-16."""
    head = content[:1000]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (
        len(head) >= 8 and 0.3 < head.count(0) / len(head) < 0.6 and not (head[0] and head[1])
    ):
        raise Broken("UTF-16, not UTF-8; convert it with iconv -f UTF-16 -t UTF-8")


def shown(value: Any) -> str:
    """A value and its type, in a few words."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:39] + '…'}"
