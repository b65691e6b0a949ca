"""What cleaning would do to a source, shown on a sample of it; nothing is written."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field

from longhaul.config.data import DataSection
from longhaul.core.units import Bytes, short_bytes
from longhaul.data.adapters.adapt import read_adapted
from longhaul.data.adapters.records import Adapted
from longhaul.data.clean.cleaner import cleaner_of
from longhaul.data.documents import Breakage, text_digest
from longhaul.data.removed import CHANGED, Removed
from longhaul.data.sources import Corpus, Reader

_MOST_READ = 20
"""Times the sample's bytes that are read of a source whose size is not known before."""
_SHOWN_LINES = 12
_COMPARED_LINES = 400
_WIDTH = 110


@dataclass(frozen=True, slots=True)
class Sample:
    """A document that was changed and stays."""

    name: str
    reasons: tuple[str, ...]
    before: str
    after: str


@dataclass(slots=True)
class Preview:
    """One source."""

    name: str
    looked_at: int = 0
    num_bytes: Bytes = 0
    """Of the documents looked at, as they were read."""
    kept: int = 0
    kept_bytes: Bytes = 0
    is_whole: bool = True
    """Whether every document was looked at."""
    removed: Removed = field(default_factory=Removed)
    samples: list[Sample] = field(default_factory=list)


def preview(corpus: Corpus, data: DataSection, sample_bytes: Bytes, show: int) -> Preview:
    """Clean a sample of a source: documents with small hashes, from files in the order of their
    names' hashes, so that it is spread and the same each time.

    Raises:
        DataError: too much of the source is broken.
        RecipeError: a file that a filter needs is not there.
    """
    reader = corpus.reader
    cleaner = cleaner_of(data, reader.settings)
    found = Preview(corpus.name)
    size = reader.num_bytes
    share = min(1.0, sample_bytes / max(1, size))
    num_read = 0
    limit = 1.0 if reader.tolerates_all else data.max_broken_fraction
    breakage = Breakage(corpus.name, limit)
    for adapted in _read(reader, breakage, found.removed):
        document = adapted.document
        content = document.text.encode()
        num_read += len(content)
        # Not the eight bytes by which a document is held out: the sample is of both sides.
        if int.from_bytes(text_digest(content)[8:], "big") >= share * 2.0**64:
            found.is_whole = False
            continue
        found.looked_at += 1
        found.num_bytes += len(content)
        counted = Removed()
        kept = document if cleaner is None else cleaner.apply(document, counted)
        found.removed.merge(counted)
        if kept is not None:
            found.kept += 1
            found.kept_bytes += len(kept.text.encode())
            _keep_sample(found, counted, adapted, kept.text, show)
        if found.num_bytes >= sample_bytes or num_read >= _MOST_READ * sample_bytes:
            found.is_whole = False
            break
    else:
        breakage.judge()
    return found


def _read(reader: Reader, breakage: Breakage, removed: Removed) -> Iterator[Adapted]:
    def by_hash(file: tuple[object, str]) -> bytes:
        return text_digest(file[1].encode(errors="replace"))

    if not reader.settings.adapter:
        spread = Reader(
            reader.name, reader.settings, reader.seed, tuple(sorted(reader.files, key=by_hash))
        )
        for document in spread.documents(breakage, removed):
            yield Adapted(document.text, document)
        return
    for path, name in sorted(reader.files, key=by_hash):
        yield from read_adapted(path, name, reader.settings, breakage, removed)


def _keep_sample(found: Preview, counted: Removed, adapted: Adapted, after: str, show: int) -> None:
    """Keep a changed document if few were changed for the same reasons."""
    if after == adapted.before:
        return
    reasons = tuple(reason.removeprefix(CHANGED) for reason in counted.reasons) or ("adapter",)
    alike = sum(sample.reasons == reasons for sample in found.samples)
    if alike < max(1, show // 4) and len(found.samples) < show:
        found.samples.append(Sample(adapted.document.name, reasons, adapted.before, after))


def preview_lines(found: Preview, show: int) -> Iterator[str]:
    """What a person reads: a table by reason with examples, and documents before and after."""
    looked_at = f"{found.looked_at:,} documents" + ("" if found.is_whole else ", a sample")
    yield (
        f"{found.name}: {looked_at} ({short_bytes(found.num_bytes)}); {found.kept:,} stay "
        f"({found.kept / max(1, found.looked_at):.1%}), {short_bytes(found.kept_bytes)}"
    )
    ordered = sorted(found.removed.reasons.items(), key=lambda item: (-item[1].documents, item[0]))
    for title, changed in (("left out", False), ("changed", True)):
        reasons = [item for item in ordered if item[0].startswith(CHANGED) == changed]
        if reasons:
            yield f"  {title:<44} {'documents':>10} {'share':>7} {'text':>9}"
        for reason, counted in reasons:
            share = counted.documents / max(1, found.looked_at)
            # What an adapter leaves out are records, of all that was read.
            shown = f"{share:.1%}" if share <= 1 else ""
            size = short_bytes(counted.num_bytes)
            named = reason.removeprefix(CHANGED)
            yield f"  {named:<44} {counted.documents:>10,} {shown:>7} {size:>9}"
            for name, example in counted.examples[:show]:
                yield _cut(f"      {name}: {' ⏎ '.join(example.split(chr(10)))}")
    if found.samples:
        yield "  before (-) and after (+)"
    for sample in found.samples:
        yield f"    {sample.name} ({'; '.join(sample.reasons)})"
        yield from _difference(sample.before, sample.after)


def _difference(before: str, after: str) -> Iterator[str]:
    """Lines that differ, with what cannot be seen written out."""
    one, other = before.split("\n"), after.split("\n")
    pairs = enumerate(zip(one, other, strict=False))
    begin = next((at for at, (old, new) in pairs if old != new), min(len(one), len(other)))
    end = begin + _COMPARED_LINES
    lines = difflib.unified_diff(one[begin:end], other[begin:end], n=0, lineterm="")
    changed = [line for line in lines if line[:3] not in ("---", "+++") and line[:2] != "@@"]
    for line in changed[:_SHOWN_LINES]:
        yield _cut(f"      {line[0]} {repr(line[1:])[1:-1]}")
    if len(changed) > _SHOWN_LINES:
        yield f"      … {len(changed) - _SHOWN_LINES:,} more lines differ"


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
