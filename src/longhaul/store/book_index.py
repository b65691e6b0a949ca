"""The index of a run's book in a store: which pages it has, and in which edition of each.

A book is what a run cannot be told from its checkpoints: `run.json`, the recipe, what was asked,
its segments, its journal with the ledger in it. In a store it lies beside the checkpoints:

```
REMOTE/book/000003-000007-9f3a61c2.json          an index: attempt, edition, who writes it
REMOTE/book/pages/journal-000003.pilot.jsonl-1a2b3c4d5e6f    a page, named by its hash
```

Nothing is ever overwritten. The index is sent last and names every page with its hash, so that a
book is whole or is not there; the newest one that can be read counts, and an attempt's number
comes first in its name, so that whoever was taken over can not write a newer one.

Enters: bytes that nobody vouches for. Leaves: an `Index`, or the refusal to believe it.
Never knows: stores, or what stands on a page.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.reading import JournalFile
from longhaul.store.manifest import FileEntry, parse_file
from longhaul.store.strict import RefusedCheckpoint, items, parse_json, table, text, whole

FOLDER = "book"
PAGES = f"{FOLDER}/pages"
FORMAT_VERSION = 1
PLAIN_PAGES = ("run.json", "recipe.toml", "asked.json", "nodes.jsonl")
SEGMENT_PAGES = ("settings.json", "source.diff")
_LATEST: Seconds = 1e11
"""Beyond the year 5000; a calendar has no words for much more."""

_EDITION = re.compile(r"([0-9]{6,18})-([0-9]{6,18})-([0-9a-f]{8})\.json", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.-]{0,64}")
_SEGMENT = re.compile(r"segments/[0-9]{1,9}\.[0-9]{1,9}/([a-z.]+)", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class Edition:
    """What an index is called; a newer one is higher."""

    attempt: int
    number: int
    """Counts the editions of an attempt."""
    writer: str
    """Eight hexadecimal digits that a process draws for itself: two that come by the same attempt
    number, on machines that do not see each other, are told apart by it."""

    @property
    def path(self) -> str:
        """Below the run's address."""
        return f"{FOLDER}/{self.attempt:06d}-{self.number:06d}-{self.writer}.json"

    @classmethod
    def parse(cls, name: str) -> "Edition | None":
        """The edition of this name; None if it is none."""
        match = _EDITION.fullmatch(name)
        return cls(int(match[1]), int(match[2]), match[3]) if match else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """One edition of a book."""

    edition: Edition
    created: Seconds
    """Unix time at which the run was made: it tells two runs of one name apart."""
    host: str
    """Where it was written from, for people."""
    time: Seconds
    """When."""
    pages: tuple[FileEntry, ...]
    """Named by their paths in the run's folder."""

    @property
    def size_bytes(self) -> Bytes:
        """Of all pages together."""
        return sum(page.size_bytes for page in self.pages)


def host_name(name: str) -> str:
    """The name of a machine as an index may give it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)[:64]


def is_page(name: str) -> bool:
    """Whether a path in a run's folder is that of a page; nothing else is ever written there."""
    folder, _, rest = name.partition("/")
    if folder == "journal":
        file = JournalFile.parse(rest)
        return file is not None and file.name == rest
    match = _SEGMENT.fullmatch(name)
    return name in PLAIN_PAGES or (match is not None and match[1] in SEGMENT_PAGES)


def grows(name: str) -> bool:
    """Whether a page is only ever added to, line by line."""
    return name.endswith(".jsonl")


def place_of(page: FileEntry) -> str:
    """Where a page lies, below the run's address."""
    return f"{PAGES}/{page.name.replace('/', '-')}-{page.sha256[:12]}"


def render_index(index: Index) -> bytes:
    """The bytes of an index."""
    body: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "attempt": index.edition.attempt,
        "edition": index.edition.number,
        "writer": index.edition.writer,
        "created": index.created,
        "host": index.host,
        "time": index.time,
        "pages": [
            {"name": page.name, "size_bytes": page.size_bytes, "sha256": page.sha256}
            for page in index.pages
        ],
    }
    body["sha256"] = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return (json.dumps(body, indent=1) + "\n").encode()


def parse_index(content: bytes, edition: Edition, name: str) -> Index:
    """The index with these bytes.

    Args:
        content: as the store gives it.
        edition: what it is called there.
        name: what an error calls it.

    Raises:
        RefusedCheckpoint: it is damaged in any byte, is of a newer format, is that of another
            edition, or names what is no page of a book.
    """
    value = parse_json(content, name)
    version = value.get("format_version") if isinstance(value, dict) else None
    if version != FORMAT_VERSION:
        raise RefusedCheckpoint(
            f"{name}: format version {version!r}; this longhaul reads {FORMAT_VERSION}"
        )
    keys = {"format_version", "attempt", "edition", "writer", "created", "host", "time", "pages"}
    body = table(value, {*keys, "sha256"}, name)
    times = (body["created"], body["time"])
    if any(type(time) is not float or not 0 <= time < _LATEST for time in times):
        raise RefusedCheckpoint(f"{name}: {times} are no numbers of seconds")
    called = Edition(whole(body["attempt"], name), whole(body["edition"], name), edition.writer)
    if called != edition or body["writer"] != edition.writer:
        raise RefusedCheckpoint(f"{name}: it is the index of another edition")
    pages = tuple(
        parse_file(item, f"{name}: pages", is_page) for item in items(body["pages"], name)
    )
    host = text(body["host"], name)
    if not _HOST.fullmatch(host):  # it is shown to people, on a terminal
        raise RefusedCheckpoint(f"{name}: {host[:80]!r} is no machine's name")
    index = Index(edition=edition, created=times[0], host=host, time=times[1], pages=pages)
    # An index has one rendering only: whatever else parses to the same value was altered.
    if content != render_index(index):
        raise RefusedCheckpoint(f"{name}: does not match its own hash; it was altered or damaged")
    if len({page.name for page in pages}) != len(pages):
        raise RefusedCheckpoint(f"{name}: names a page twice")
    return index
