"""Proceedings: pages of scanned or typeset text, without their heads, feet, page numbers, mark-up
of speeches (as in Europarl) and the hyphens at line ends.

Pages are parted by form feeds, as `pdftotext` writes them.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from longhaul.data.adapters.records import Adapted, Record
from longhaul.data.documents import Document
from longhaul.data.removed import CHANGED, Removed

_EDGE_LINES = 2
"""Lines at the top and at the bottom of a page that may be its head and its foot, as long as they
are no more than a third of it each."""
_FEWEST_PAGES = 3
_DIGITS = re.compile(r"\d+|\b[ivxlc]+\b")
_PAGE_NUMBER = re.compile(r"\s*(?:[-–—]\s*)?(?:\d{1,4}|[ivxlc]{1,7})(?:\s*[-–—])?\s*\Z")
_MARK_UP = re.compile(r"\s*</?[A-Z][A-Z0-9]*(?:\s[^<>]*)?/?>\s*\Z")
# Begun at a word's first letter alone, or a word of a million letters would cost their square.
_BROKEN_WORD = re.compile(r"(?<![^\W\d_])([^\W\d_]{2,}+)(?:-|\u00ad|\u2010)\n[ \t]*([^\W\d_]+)")
_WORDS = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")

HEADS = f"{CHANGED}proceedings: heads and feet of pages"
MARK_UP = f"{CHANGED}proceedings: mark-up"
HYPHENS = f"{CHANGED}proceedings: hyphens at line ends"


def adapt_proceedings(records: Iterator[Record], removed: Removed) -> Iterator[Adapted]:
    """One document for each text."""
    for record in records:
        value = record.first(record.text_field, "body", "content")
        before = value if isinstance(value, str) else ""
        lines = before.replace("\r\n", "\n").split("\n")
        marks = [line for line in lines if _MARK_UP.match(line)]
        if marks:
            removed.drop(MARK_UP, record.name, "\n".join(marks))
            lines = [line for line in lines if not _MARK_UP.match(line)]
        pages, cut = _without_edges([page.split("\n") for page in "\n".join(lines).split("\f")])
        if cut:
            removed.drop(HEADS, record.name, "\n".join(cut))
        text, hyphens = _joined("\n".join("\n".join(page).strip("\n") for page in pages))
        if hyphens:
            removed.note(HYPHENS, record.name, len(hyphens), partial(", ".join, hyphens))
        if text.strip():
            yield Adapted(before, Document(text, record.name))


def _without_edges(pages: list[list[str]]) -> tuple[list[list[str]], list[str]]:
    """Pages without the lines at their edges that half of them have, numbers aside, and without
    page numbers; and what was cut.
    """
    if len(pages) < _FEWEST_PAGES:
        return pages, []
    seen: Counter[str] = Counter()
    for page in pages:
        seen.update({_shape(page[at]) for at in _edges(page)})
    repeated = {shape for shape, times in seen.items() if 2 * times > len(pages)}
    kept, cut = [], []
    for page in pages:
        gone = {
            at
            for at in _edges(page)
            if _shape(page[at]) in repeated or _PAGE_NUMBER.match(page[at])
        }
        cut += [page[at] for at in sorted(gone)]
        kept.append([line for at, line in enumerate(page) if at not in gone])
    return kept, cut


def _edges(page: list[str]) -> list[int]:
    """Places of the first and the last lines that are not empty."""
    filled = [at for at, line in enumerate(page) if line.strip()]
    num_edge = min(_EDGE_LINES, len(filled) // 3)
    return filled[:num_edge] + filled[len(filled) - num_edge :]


def _shape(line: str) -> str:
    """A line as it is on other pages: without numbers and spaces around."""
    return " ".join(_DIGITS.sub("0", line.strip().lower()).split())


def _joined(text: str) -> tuple[str, list[str]]:
    """The text with words put together that a line end parts, and those words.

    A hyphen that the text writes within a line too ("well-known") stays.
    """
    words = Counter(word.lower() for word in _WORDS.findall(text))
    joined: list[str] = []

    def together(found: re.Match[str]) -> str:
        first, rest = found.groups()
        if words[f"{first}-{rest}".lower()] or not rest[0].islower():
            return found.group()
        joined.append(first + rest)
        return first + rest

    return _BROKEN_WORD.sub(together, text), joined
