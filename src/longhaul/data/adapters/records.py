"""Records: their fields under the names that are in use, their text without HTML, their groups."""

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

from longhaul.core.units import Bytes
from longhaul.data.documents import Document

Fields: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A line of JSON, a row of Parquet, or a whole text as the one field `text_field`."""

    name: str
    """As its document would be called: `posts.jsonl:17`."""
    fields: Fields
    text_field: str

    def first(self, *names: str) -> Any:
        """The first of these fields that is there and is not null."""
        return first_of(self.fields, *names)

    def text(self, *names: str) -> str:
        """The text in `text_field`, or else in the first of these; empty if there is none."""
        return text_of(self.fields, self.text_field, *names)


@dataclass(frozen=True, slots=True)
class Adapted:
    """A document, and what it was made from, for a person to compare."""

    before: str
    document: Document


def first_of(fields: Fields, *names: str) -> Any:
    """The first of these fields that is there and is not null."""
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def text_of(fields: Fields, *names: str) -> str:
    """The first of these fields that is there, as plain text; empty if none is."""
    value = first_of(fields, *names)
    return plain_text(value) if isinstance(value, str) else ""


def number_of(value: Any) -> float:
    """A score, which some dumps have as text; 0 if it is none."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0


_BLOCKS = frozenset({
    "p", "div", "br", "li", "ul", "ol", "pre", "blockquote", "tr", "table", "hr",
    "h1", "h2", "h3", "h4", "h5", "h6",
})  # fmt: skip
_UNREAD = frozenset({"script", "style"})


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._unread = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._unread += tag in _UNREAD
        if tag in _BLOCKS:
            self.pieces.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._unread = max(0, self._unread - (tag in _UNREAD))
        if tag in _BLOCKS and tag != "br":
            self.pieces.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._unread:
            self.pieces.append(data)


def plain_text(text: str) -> str:
    """A text as it is read; of HTML, which dumps of forums have, without tags and entities."""
    if "</" not in text or not any(f"<{tag}" in text for tag in ("p>", "pre", "a ", "div", "ul")):
        return text.strip()
    parser = _TextParser()
    parser.feed(text)
    parser.close()
    joined = "".join(parser.pieces)
    while "\n\n\n" in joined:
        joined = joined.replace("\n\n\n", "\n\n")
    return joined.strip()


MOST_HELD: Bytes = 256_000_000
"""Text of a file's records in memory; beyond it they go through buckets on disk."""
_BUCKETS = 64


def in_buckets(
    records: Iterator[Record], key: Callable[[Record], str], most_held: Bytes = MOST_HELD
) -> Iterator[list[Record]]:
    """All records at once; where they are too many for memory, in 64 lists of which each has all
    records of a key. Both in the records' order.
    """
    held: list[Record] = []
    num_bytes = 0
    for record in records:
        held.append(record)
        num_bytes += sum(len(v) for v in record.fields.values() if isinstance(v, str))
        if num_bytes > most_held:
            break
    else:
        yield held
        return
    with tempfile.TemporaryDirectory(prefix="longhaul-records-") as folder:
        buckets = [Path(folder, str(number)) for number in range(_BUCKETS)]
        with ExitStack() as stack:
            files = [stack.enter_context(bucket.open("w")) for bucket in buckets]
            for record in chain(held, records):
                line = json.dumps([record.name, record.fields, record.text_field], default=str)
                files[crc32(key(record).encode(errors="replace")) % _BUCKETS].write(f"{line}\n")
        held.clear()
        for bucket in buckets:
            with bucket.open() as lines:
                yield [Record(*json.loads(line)) for line in lines]
