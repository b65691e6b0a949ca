"""The first stage: a source's files read and cleaned once, into parts.

A unit is a few files, or a stretch of a large one, that one worker reads; a killed one goes on
behind its last whole part.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from longhaul.config.data import DataSection
from longhaul.core.output import Say
from longhaul.core.units import Bytes
from longhaul.data.clean.cleaner import Cleaner
from longhaul.data.corpus.engine import Resources, run_jobs
from longhaul.data.corpus.parts import Part, PartWriter, mark, marked, part_name, part_of
from longhaul.data.corpus.progress import CorpusProgress
from longhaul.data.documents import Breakage, Document
from longhaul.data.readers.stretches import STRETCH_BYTES, count_lines, stretches_of
from longhaul.data.removed import Removed
from longhaul.data.sources import Corpus, Reader

_UNIT_BYTES = STRETCH_BYTES
"""Files are read together up to here; a larger one is a unit of its own, or several."""
_MOST_FILES = 4096


@dataclass(frozen=True, slots=True)
class _Unit:
    """A job: read these files into parts."""

    folder: Path
    name: str
    reader: Reader
    cleaner: Cleaner | None


@dataclass(frozen=True)
class SourceParts:
    """A source, read."""

    name: str
    folder: Path
    parts: tuple[Part, ...]
    """In the order of their documents."""
    breakage: Breakage
    removed: Removed
    """By adapter, cleaning and filters."""

    def summary(self) -> str:
        """What was skipped and left out, in a few words; empty if nothing was."""
        told = [self.breakage.summary()] if self.breakage.summary() else []
        if self.removed.documents:
            reasons = sorted(self.removed.left_out(), key=lambda found: (-found[1], found[0]))
            words = ", ".join(f"{number:,} {name}" for name, number in reasons[:3])
            told.append(f"{self.removed.documents:,} left out ({words})")
        return ", ".join(told)


def read_source(
    corpus: Corpus,
    folder: Path,
    data: DataSection,
    cleaner: Cleaner | None,
    resources: Resources,
    say: Say,
) -> SourceParts:
    """A source's parts, below `folder`, read unless they are there. DataError if too much of it is
    broken.
    """
    folder.mkdir(parents=True, exist_ok=True)
    units = [
        _Unit(folder, f"{number:06d}", reader, cleaner)
        for number, reader in enumerate(_numbered(list(_grouped(corpus.reader)), resources))
    ]
    sizes = [unit.reader.num_bytes for unit in units]
    waiting = [n for n, unit in enumerate(units) if marked(folder / unit.name) is None]
    progress = CorpusProgress(say, f"data: reading {corpus.name}", sum(sizes))
    progress.begin_at(sum(sizes) - sum(sizes[n] for n in waiting))
    for position, (documents, num_bytes) in run_jobs(
        read_unit, [units[n] for n in waiting], resources
    ):
        progress.done(sizes[waiting[position]], documents, num_bytes)
    return _gathered(corpus, folder, units, data)


def _gathered(
    corpus: Corpus, folder: Path, units: Sequence[_Unit], data: DataSection
) -> SourceParts:
    limit = 1.0 if corpus.reader.tolerates_all else data.max_broken_fraction
    breakage, removed = Breakage(corpus.name, limit), Removed()
    parts: list[Part] = []
    for unit in units:
        facts = marked(folder / unit.name) or {}
        breakage.add_json(facts["breakage"])
        for part, left_out in _whole_parts(folder, unit.name):
            parts.append(part)
            removed.merge(left_out)
    breakage.judge()
    return SourceParts(corpus.name, folder, tuple(parts), breakage, removed)


def _grouped(reader: Reader) -> Iterator[Reader]:
    """Of one unit after the other; one without files for what is in no file."""
    group: list[tuple[Path, str]] = []
    held: Bytes = 0
    for path, name in reader.files:
        size = path.stat().st_size
        # Some adapters make one document of many records.
        stretches = [] if reader.settings.adapter else stretches_of(path, name)
        if group and (held + size > _UNIT_BYTES or len(group) >= _MOST_FILES):
            yield replace(reader, files=tuple(group))
            group, held = [], 0
        if stretches:
            for stretch in stretches:
                yield replace(reader, files=((path, name),), stretch=stretch)
            continue
        group.append((path, name))
        held += size
    if group or not reader.files:
        yield replace(reader, files=tuple(group))


def _numbered(readers: Sequence[Reader], resources: Resources) -> Iterator[Reader]:
    """The same, with the lines before each stretch, which documents are named after."""
    cut = [reader for reader in readers if reader.stretch is not None]
    counts = dict(run_jobs(_lines_of, cut, resources, light=True)) if cut else {}
    position, before = 0, 0
    for reader in readers:
        if reader.stretch is None:
            yield reader
            continue
        before = before if reader.stretch.begin else 0
        yield replace(reader, stretch=replace(reader.stretch, lines_before=before))
        before += counts[position]
        position += 1


def _lines_of(reader: Reader) -> int:
    assert reader.stretch is not None
    return count_lines(reader.files[0][0], reader.stretch)


def _whole_parts(folder: Path, unit: str) -> Iterator[tuple[Part, Removed]]:
    number = 0
    while (part := part_of(path := folder / part_name(unit, number))) is not None:
        yield part, Removed.from_json((marked(path) or {})["removed"])
        number += 1


def read_unit(unit: _Unit) -> tuple[int, Bytes]:
    """Read a unit's files into parts; documents and bytes of text kept in all of them."""
    whole = [part for part, _ in _whole_parts(unit.folder, unit.name)]
    skipped = whole[-1].num_read if whole else 0
    writer = PartWriter(unit.folder, unit.name, len(whole))
    # The driver judges: one unit with all that is broken may be the exception.
    breakage = Breakage(unit.reader.name, max_fraction=1.0)
    keep: Callable[[Document, Removed], Document | None] = _as_it_is
    if unit.cleaner is not None:
        keep = unit.cleaner.apply
    number = 0
    for number, document in enumerate(unit.reader.documents(breakage, writer.removed), 1):
        if number <= skipped:
            # What its adapter left out so far stands in the parts that are whole.
            writer.removed.reasons.clear()
            continue
        kept = keep(document, writer.removed)
        if kept is not None:
            writer.add(kept, number)
    writer.flush(number)
    parts = [part for part, _ in _whole_parts(unit.folder, unit.name)]
    documents = sum(part.num_documents for part in parts)
    num_bytes = sum(part.num_bytes for part in parts)
    mark(unit.folder / unit.name, {"parts": len(parts), "breakage": breakage.as_json()})
    return documents, num_bytes


def _as_it_is(document: Document, removed: Removed) -> Document:
    return document
