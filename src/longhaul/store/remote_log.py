"""The remote run log: what checkpoints do not hold of a run, in a store, each file once.

```
REMOTE/book/000003-000007-9f3a61c2.json          an index: attempt, edition, who writes it
REMOTE/book/pages/journal-000003.pilot.jsonl-1a2b3c4d5e6f    a page, named by its hash
```

Like a checkpoint's manifest the index is sent last and names every page with its hash. Nothing is
overwritten; the newest index that can be read counts, and an attempt's number comes first in its
name, so that an attempt that was taken over cannot write a newer one.
"""

import hashlib
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from longhaul.core.clocks import Clock
from longhaul.core.errors import ExitCode, LonghaulError, NotOwner
from longhaul.core.records import Moment
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import RunFolder, created_of
from longhaul.logbook.reading import JournalFile, journal_files
from longhaul.store.manifest import (
    FileEntry,
    RefusedCheckpoint,
    Whole,
    check_names,
    check_rendered,
    parse_sealed,
    render_sealed,
    shaped,
)
from longhaul.store.store_files import StoreFiles, local_pieces
from longhaul.store.transfers import StoreError

FOLDER = "book"
PAGES = f"{FOLDER}/pages"
PLAIN_PAGES = ("run.json", "recipe.toml", "asked.json", "nodes.jsonl")
SEGMENT_PAGES = ("settings.json", "source.diff")

_EDITION = re.compile(r"([0-9]{6,18})-([0-9]{6,18})-([0-9a-f]{8})\.json", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.-]{0,64}")
_SEGMENT = re.compile(r"segments/[0-9]{1,9}\.[0-9]{1,9}/([a-z.]+)", re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class Edition:
    """What an index is called; a newer one is higher."""

    attempt: Whole
    number: Whole
    """Counts the editions of an attempt."""
    writer: str
    """Eight hexadecimal digits by which two are distinguished that come by the same attempt number,
    on machines that do not see each other."""

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
    """One edition of a run log."""

    edition: Edition
    created: Moment
    """Unix time at which the run was made: it distinguishes two runs of one name."""
    host: str
    """Where it was written from, for people."""
    time: Moment
    pages: tuple[FileEntry, ...]
    """Named by their paths in the run's folder."""

    @property
    def size_bytes(self) -> Bytes:
        """Of all pages together."""
        return sum(page.size_bytes for page in self.pages)


_INDEX = TypeAdapter(Index)


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


def _grows(name: str) -> bool:
    """Whether a page is only ever added to, line by line."""
    return name.endswith(".jsonl")


def place_of(page: FileEntry) -> str:
    """Where a page lies, below the run's address."""
    return f"{PAGES}/{page.name.replace('/', '-')}-{page.sha256[:12]}"


def render_index(index: Index) -> bytes:
    """The bytes of an index."""
    edition = index.edition
    body = {
        "attempt": edition.attempt, "edition": edition.number, "writer": edition.writer,
        "created": index.created, "host": index.host, "time": index.time,
        "pages": [asdict(page) for page in index.pages],
    }  # fmt: skip
    return render_sealed(body, indent=1)


def parse_index(content: bytes, edition: Edition, name: str) -> Index:
    """The index with these bytes, called `edition` in its store and `name` in an error; refused if
    it is damaged in any byte, of a newer format, that of another edition, or names what is no page.
    """
    body = parse_sealed(
        content, name, {"attempt", "edition", "writer", "created", "host", "time", "pages"}
    )
    called = {"attempt": body["attempt"], "number": body["edition"], "writer": body["writer"]}
    index = shaped(_INDEX, {**body, "edition": called}, name)
    if index.edition != edition:
        raise RefusedCheckpoint(f"{name}: it is the index of another edition")
    check_names(index.pages, f"{name}: pages", is_page)
    if not _HOST.fullmatch(index.host):  # it is shown to people, on a terminal
        raise RefusedCheckpoint(f"{name}: {index.host[:80]!r} is no machine's name")
    check_rendered(content, render_index(index), name)
    return index


_KEPT = 2
"""Editions that stay: who reads one while the next is written finds its pages."""
_LOOKS = 3
"""At pages that change while they are sent, as where a full disk takes a line back."""
_TAIL_BYTES: Bytes = 1 << 20


class PlaceTaken(LonghaulError):
    """The place in the store is that of another run, or of a later attempt at this one."""

    exit_code = ExitCode.NEEDS_PERSON


class RunLogMirror:
    """Sends the run log of one attempt to the files below the run's own address; its editions bear
    the attempt's number, its `writer`, and the clock's time.
    """

    def __init__(
        self, folder: RunFolder, files: StoreFiles, attempt: int, writer: str, clock: Clock
    ) -> None:
        self._folder = folder
        self._files = files
        self._attempt = attempt
        self._clock = clock
        self._writer = writer
        self._claimed = False
        self._known: list[Index] = []
        """Editions there, oldest first, the newest two or three."""
        self._sent: set[str] = set()
        """Pages that this process has read back there, whether an edition has them or not."""
        self._hashed: dict[str, tuple[tuple[int, int], FileEntry]] = {}

    def send(self, still_owner: Callable[[], bool]) -> Bytes:
        """Bring there what the store's newest edition lacks, and seal it; the bytes sent.

        Raises:
            StoreError: the store refused or hung; call it again later.
            PlaceTaken: another run, or a later attempt at this one, has its run log there.
            NotOwner: the fence, right before an edition is sealed: another attempt has the lease.
        """
        created = created_of(self._folder)
        if created is None:
            return 0  # no run yet
        if not self._claimed:
            self._claim(created, still_owner)
        with self._files.throttle:
            there = self._there()
            for look in range(1, _LOOKS + 1):
                pages = tuple(self._pages())
                try:
                    sent = sum(self._send_page(page, there) for page in pages)
                    break
                except RefusedCheckpoint as changed:
                    self._hashed.clear()
                    if look == _LOOKS:
                        raise StoreError(changed.message) from changed
            if not self._known or self._known[-1].pages != pages:
                self._seal(pages, created, still_owner)
                self._tidy_up()
        return sent

    def _claim(self, created: Seconds, still_owner: Callable[[], bool]) -> None:
        """See whose place it is, and make it this attempt's: what was there, under its number."""
        self._known = list(editions(self._files))[::-1]
        newest = self._known[-1] if self._known else None
        if newest is not None and newest.created != created:
            raise PlaceTaken(
                f"{self._files.name} is the place of another run of this name, written from "
                f"{newest.host}: nothing of this one is sent there",
                "give one of the two runs another name, or another checkpoint.remote",
            )
        self._refuse_if_taken(claiming=True)
        if newest is not None and newest.edition.attempt < self._attempt:
            self._seal(newest.pages, created, still_owner)
        self._claimed = True

    def _refuse_if_taken(self, claiming: bool = False) -> None:
        for name in self._files.names(FOLDER):
            there = Edition.parse(name)
            if there is None or there.attempt < self._attempt or there.writer == self._writer:
                continue
            # Two that came by the same number at the same moment: one of them gives way.
            if there.attempt > self._attempt or claiming or there.writer < self._writer:
                raise PlaceTaken(
                    f"{self._files.name}: attempt {there.attempt} at this run, begun elsewhere, "
                    f"has taken its place there: nothing of attempt {self._attempt} here is sent",
                    "if two machines train this run, stop one of them",
                )

    def _seal(
        self, pages: tuple[FileEntry, ...], created: Seconds, still_owner: Callable[[], bool]
    ) -> None:
        """Write the index of an edition whose pages are all there."""
        editions_known = [index.edition for index in self._known]
        own = [known.number for known in editions_known if known.attempt == self._attempt]
        if not still_owner():
            raise NotOwner(f"no edition of the run log was sealed in {self._files.name}")
        self._refuse_if_taken()
        index = Index(
            edition=Edition(self._attempt, max(own, default=0) + 1, self._writer),
            created=created,
            host=host_name(platform.node()),
            time=self._clock.wall(),
            pages=pages,
        )
        self._files.send_bytes(render_index(index), index.edition.path)
        self._known.append(index)

    def _tidy_up(self) -> None:
        """Remove older editions, and the pages that they alone have; failing costs space only."""
        gone, kept = self._known[:-_KEPT], self._known[-_KEPT:]
        wanted = {place_of(page) for index in kept for page in index.pages}
        with suppress(StoreError):
            for index in gone:
                self._files.remove(index.edition.path)
            unwanted = {place_of(page) for index in gone for page in index.pages} - wanted
            for place in sorted(unwanted):
                self._files.remove(place)
        self._known, self._sent = kept, self._sent & wanted

    def _there(self) -> set[str]:
        """Pages that are there whole: somebody has read them back, and nobody has removed them."""
        compared = {place_of(page) for index in self._known for page in index.pages} | self._sent
        return compared & {f"{PAGES}/{name}" for name in self._files.names(PAGES)}

    def _send_page(self, page: FileEntry, there: set[str]) -> Bytes:
        place = place_of(page)
        if place in there:
            return 0
        source = self._folder.path / page.name
        self._files.send(source, place, page, growing=_grows(page.name))
        self._sent.add(place)
        there.add(place)
        return page.size_bytes

    def _pages(self) -> Iterator[FileEntry]:
        for path in _candidates(self._folder):
            with suppress(OSError, RefusedCheckpoint):
                if (page := self._page(path)) is not None:
                    yield page

    def _page(self, path: Path) -> FileEntry | None:
        name = path.relative_to(self._folder.path).as_posix()
        found = path.stat()
        state = (found.st_size, found.st_mtime_ns)
        hashed = self._hashed.get(name)
        if hashed is not None and hashed[0] == state:
            return hashed[1]
        size = _whole_lines(path, found.st_size) if _grows(name) else found.st_size
        if not is_page(name) or size == 0:
            return None
        digest = hashlib.sha256()
        for piece in local_pieces(path, size):
            digest.update(piece)
        page = FileEntry(name, size, digest.hexdigest())
        self._hashed[name] = state, page
        return page


def editions(files: StoreFiles) -> Iterator[Index]:
    """The readable editions of a run log there, newest first. StoreError if it does not answer."""
    found = (Edition.parse(name) for name in files.names(FOLDER))
    for edition in sorted((item for item in found if item is not None), reverse=True):
        content = files.read_small(edition.path)
        if content is not None:
            with suppress(RefusedCheckpoint):
                yield parse_index(content, edition, f"{files.name}/{edition.path}")


def _candidates(folder: RunFolder) -> Iterator[Path]:
    yield from (folder.path / name for name in PLAIN_PAGES)
    if folder.segments.is_dir():
        for segment in sorted(folder.segments.iterdir()):
            yield from (segment / name for name in SEGMENT_PAGES)
    yield from (folder.journal / file.name for file in journal_files(folder.journal))


def _whole_lines(path: Path, size: Bytes) -> Bytes:
    """How much of a growing file ends with a line; a line longer than a megabyte is none."""
    begin = max(0, size - _TAIL_BYTES)
    with path.open("rb") as file:
        file.seek(begin)
        tail = file.read(size - begin)
    return begin + tail.rfind(b"\n") + 1
