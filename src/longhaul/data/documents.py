"""Documents: the unit in which text is read, found broken, deduplicated, held out and named."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from longhaul.core.errors import DataError
from longhaul.core.units import Bytes, short_bytes

T = TypeVar("T")

_MOST_AT_ONCE = 1024
MAX_PIECE_BYTES = 16 << 20
"""A text file beyond this is cut into several documents, so that memory stays bounded."""
MAX_LINE_BYTES = 64 << 20
"""A line or a Parquet value beyond this is no document but an accident, and is skipped."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it came from."""

    text: str
    """Never empty, and always encodable as UTF-8."""
    name: str
    """`peps.jsonl:17` (line), `part-0.parquet:17` (row), `os.py` (path relative to the source),
    `big.txt#2` (second piece of a file that was cut), or `shard.tar:7.txt` (in an archive)."""
    url: str = ""
    """Address of the page it was on, where the source says it."""


def cut_text(text: str, max_characters: int) -> list[str]:
    """Pieces of at most `max_characters` that add up to `text`.

    Each is cut after a line end if there is one in its second half, else anywhere.
    """
    pieces = []
    begin = 0
    while len(text) - begin > max_characters:
        limit = begin + max_characters
        newline = text.rfind("\n", begin + max_characters // 2, limit)
        end = newline + 1 if newline >= 0 else limit
        pieces.append(text[begin:end])
        begin = end
    pieces.append(text[begin:] if begin else text)
    return pieces


def batched(items: Iterable[T], size: Callable[[T], int], enough: int) -> Iterator[list[T]]:
    """Lists of items, each of which ends once their sizes are `enough`, or at 1,024 items."""
    batch: list[T] = []
    held = 0
    for item in items:
        batch.append(item)
        held += size(item)
        if held >= enough or len(batch) >= _MOST_AT_ONCE:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


_MAX_NAMED_FILES = 1000
_EXAMPLES_PER_FILE = 5
_SHOWN = 5
_HOPELESS = 1000
"""Broken lines or files from which on reading may stop early."""
_COUNTS = (
    "num_seen", "num_broken", "num_empty", "num_duplicates", "num_bytes", "bytes_lost",
    "num_without_text",
)  # fmt: skip


class Breakage:
    """Counts what is left out of one source.

    Broken ÷ (lines + rows + files seen) + bytes lost ÷ bytes may be `max_fraction`: how many rows
    the lost end of a file had, nobody knows. Empty files and texts are counted apart: nothing is
    lost by leaving them out, and a folder of code is full of empty `__init__.py`.
    """

    def __init__(self, source: str, max_fraction: float) -> None:
        self.num_seen = 0
        self.num_broken = 0
        self.num_empty = 0
        self.num_duplicates = 0
        self.num_bytes: Bytes = 0
        """On disk, of the files seen, with what is known to be missing of them."""
        self.bytes_lost: Bytes = 0
        """Of those, behind the damage in a file or behind its early end."""
        self.num_without_text = 0
        """Members of archives that are no text, such as pictures."""
        self._source = source
        self._max_fraction = max_fraction
        self._examples: dict[str, list[str]] = {}
        self._counts: dict[str, int] = {}
        self._first_empty = ""
        self._first_without_text = ""

    def broken(self, file: str, reason: str, line: int | None = None) -> None:
        """Count a file, line or row that is skipped; DataError if they are too many already."""
        self.num_broken += 1
        self._note(file, reason, line)
        # A bad stretch at the beginning of a long file may still be within the limit at its end,
        # so stopping early takes ten times the tolerated share.
        share = self.num_broken / max(1, self.num_seen)
        if self.num_broken >= _HOPELESS and share > min(0.5, 10 * self._max_fraction):
            self.judge()

    def ended_early(self, file: str, reason: str, damaged: Bytes, missing: Bytes = 0) -> None:
        """Count what is lost of a file that cannot be read to its end: bytes of it on disk, and
        bytes that should have followed.
        """
        self._note(file, reason)
        self.num_bytes += missing
        self.bytes_lost += damaged + missing

    def _note(self, file: str, reason: str, line: int | None = None) -> None:
        if file in self._counts or len(self._counts) < _MAX_NAMED_FILES:
            self._counts[file] = self._counts.get(file, 0) + 1
            examples = self._examples.setdefault(file, [])
            if len(examples) < _EXAMPLES_PER_FILE:
                where = file if line is None else f"{file}:{line}"
                examples.append(f"{where}: {reason}")

    def without_text(self, name: str) -> None:
        """A member of an archive is of another kind, and left out."""
        self.num_without_text += 1
        self._first_without_text = self._first_without_text or name

    def empty(self, name: str) -> None:
        """A file or text without a character in it is left out."""
        self.num_empty += 1
        self._first_empty = self._first_empty or name

    @property
    def fraction(self) -> float:
        """Broken share of everything seen, and lost share of its bytes (0 to 1)."""
        items = self.num_broken / max(1, self.num_seen)
        return min(1.0, items + self.bytes_lost / max(1, self.num_bytes))

    def judge(self) -> None:
        """Raise DataError if more is broken than `max_fraction` allows."""
        if self.fraction <= self._max_fraction:
            return
        broken = f"{self.num_broken:,} of {self.num_seen:,} lines and files are broken"
        lost = f"{short_bytes(self.bytes_lost)} of {short_bytes(self.num_bytes)} in files are lost"
        what = " and ".join([broken] * (self.num_broken > 0) + [lost] * (self.bytes_lost > 0))
        raise DataError(
            f"{self._source}: {what} "
            f"({self.fraction:.3g} of them; data.max_broken_fraction is {self._max_fraction:g})"
            + "".join(f"\n    {example}" for example in self.worst()),
            "repair or remove them, or raise data.max_broken_fraction to skip them",
        )

    def worst(self) -> list[str]:
        """Up to five examples: one from each of the files with most breakage, then further ones."""
        ranked = sorted(self._counts, key=lambda file: (-self._counts[file], file))[:_SHOWN]
        picked = [
            (rank, turn)
            for turn in range(_EXAMPLES_PER_FILE)
            for rank, file in enumerate(ranked)
            if turn < len(self._examples[file])
        ][:_SHOWN]
        return [self._examples[ranked[rank]][turn] for rank, turn in sorted(picked)]

    def merge(self, later: "Breakage") -> None:
        """Add what was counted in a later part of the same source."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for file, number in later._counts.items():
            if file in self._counts or len(self._counts) < _MAX_NAMED_FILES:
                self._counts[file] = self._counts.get(file, 0) + number
                examples = self._examples.setdefault(file, [])
                examples += later._examples[file][: _EXAMPLES_PER_FILE - len(examples)]
        self._first_empty = self._first_empty or later._first_empty
        self._first_without_text = self._first_without_text or later._first_without_text

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `add_json`."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        files = [[file, n, self._examples[file]] for file, n in self._counts.items()]
        first = {"first_empty": self._first_empty, "first_without_text": self._first_without_text}
        return {**counts, "files": files, **first}

    def add_json(self, value: Mapping[str, Any]) -> None:
        """Merge what `as_json` gave of a later part of the same source."""
        later = Breakage(self._source, self._max_fraction)
        for name in _COUNTS:
            setattr(later, name, value.get(name, 0))
        later._counts = {file: number for file, number, _ in value["files"]}
        later._examples = {file: examples for file, _, examples in value["files"]}
        later._first_empty = value["first_empty"]
        later._first_without_text = value.get("first_without_text", "")
        self.merge(later)

    def summary(self) -> str:
        """What was skipped, in a few words; empty if nothing was."""
        parts = []
        worst = "; ".join(self.worst()[:2])
        if self.num_broken:
            parts.append(f"{self.num_broken:,} broken skipped ({worst})")
        if self.bytes_lost:
            shown = "" if self.num_broken else f" ({worst})"
            parts.append(f"{short_bytes(self.bytes_lost)} lost in files that end early{shown}")
        if self.num_empty:
            parts.append(f"{self.num_empty:,} empty left out (such as {self._first_empty})")
        if self.num_without_text:
            such = self._first_without_text
            parts.append(f"{self.num_without_text:,} without text left out (such as {such})")
        return ", ".join(parts)


def text_digest(content: bytes) -> bytes:
    """128-bit BLAKE2b of a document's UTF-8 bytes; the same on every machine."""
    return hashlib.blake2b(content, digest_size=16).digest()


def is_held_out(digest: bytes, fraction: float) -> bool:
    """Whether a text belongs to the validation split: a property of the text alone, which no other
    document changes. Growing the fraction only adds to the held-out side.
    """
    return int.from_bytes(digest[:8], "big") < fraction * 2.0**64
