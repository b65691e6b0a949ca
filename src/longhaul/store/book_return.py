"""A run's book brought back from a store, page by page, where nothing of it is left here.

Enters: the places that may have it. Leaves: its pages in a folder, each compared with its hash,
and the names of those that could not be had. Never knows: what is done with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from longhaul.store.book_index import PAGES, Index, place_of
from longhaul.store.book_mirror import editions
from longhaul.store.manifest import FileEntry
from longhaul.store.patience import StoreError
from longhaul.store.store_files import StoreFiles

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Found:
    """A book in a store."""

    files: StoreFiles
    editions: tuple[Index, ...]
    """Newest first, at least one."""
    places: frozenset[str]
    """Of the pages that are there, whole or not."""

    @property
    def newest(self) -> Index:
        """What is brought back, as far as it can be had."""
        return self.editions[0]


@dataclass(frozen=True, slots=True)
class Lacking:
    """A page that could not be had as the newest edition has it."""

    name: str
    instead: str
    """What was taken instead, in words."""

    def __str__(self) -> str:
        return f"{self.name} ({self.instead})"


def find_book(files: StoreFiles) -> Found | None:
    """The book of a run in one store; None if there is none.

    Raises:
        StoreError: the store does not say.
    """
    there = tuple(editions(files))
    if not there:
        return None
    return Found(files, there, frozenset(f"{PAGES}/{name}" for name in files.names(PAGES)))


def best_first(found: Sequence[Found]) -> list[Found]:
    """Those of the run that the first store knows, the newest edition first."""
    same = [book for book in found if book.newest.created == found[0].newest.created]
    return sorted(same, key=lambda book: book.newest.edition, reverse=True)


def bring_book(books: Sequence[Found], into: Path, say: Say) -> list[Lacking]:
    """Fetch the pages of the newest edition; what could not be had.

    Args:
        books: as by `best_first`; where one store fails, the next one's page is taken.
        into: a folder, made if need be.
        say: is told what is tried again.

    Raises:
        StoreError: a store that may have a page does not answer, and no other one gave it.
        OSError: the local medium refused.
    """
    lacking = []
    for page in books[0].newest.pages:
        target = into / page.name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _from_any(books, page, target, say):
            target.unlink(missing_ok=True)
            lacking.append(Lacking(page.name, _an_older_one(books, page, target, say)))
    return lacking


def _from_any(books: Sequence[Found], page: FileEntry, target: Path, say: Say) -> bool:
    """Whether this very page could be had from one of the stores."""
    place, silent = place_of(page), None
    for book in books:
        if place not in book.places:
            continue
        try:
            book.files.fetch(place, target, page, say)
            return True
        except StoreError as error:
            if not _is_damaged(book, page):
                silent = error
    if silent is not None:
        raise silent
    return False


def _is_damaged(book: Found, page: FileEntry) -> bool:
    """Whether asking again would not help, because the store does answer."""
    try:
        return not book.files.holds(place_of(page), page)
    except StoreError:
        return False


def _an_older_one(books: Sequence[Found], page: FileEntry, target: Path, say: Say) -> str:
    """Take a page as an older edition has it; what was taken, in words."""
    for book in books:
        for index in book.editions:
            older = next((other for other in index.pages if other.name == page.name), page)
            if older != page and _from_any([book], older, target, say):
                return f"an older edition of it, {older.size_bytes} of {page.size_bytes} bytes"
    return "nothing is left of it"
