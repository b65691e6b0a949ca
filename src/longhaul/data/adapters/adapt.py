"""From a file of a source with an adapter to its documents."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from longhaul.config.data import SourceSection
from longhaul.data.adapters.discussion import adapt_discussions
from longhaul.data.adapters.mail import adapt_mail
from longhaul.data.adapters.proceedings import adapt_proceedings
from longhaul.data.adapters.questions import adapt_questions
from longhaul.data.adapters.records import Adapted, Record
from longhaul.data.documents import MAX_LINE_BYTES, Breakage, Document
from longhaul.data.readers import format_of, read_file
from longhaul.data.readers.stretches import Stretch
from longhaul.data.removed import Removed

_ADAPTERS: dict[str, Callable[[Iterator[Record], Removed], Iterator[Adapted]]] = {
    "discussion": adapt_discussions,
    "mail": adapt_mail,
    "proceedings": adapt_proceedings,
    "questions": adapt_questions,
}


def read_source_file(
    path: Path,
    name: str,
    source: SourceSection,
    breakage: Breakage,
    removed: Removed,
    stretch: Stretch | None = None,
) -> Iterator[Document]:
    """The documents of one file as a source's adapter makes them; without one, as they are, or
    those of a `stretch` of it.

    `removed` counts what an adapter leaves out; `breakage` what cannot be read.
    """
    if not source.adapter and not source.url_field:
        yield from read_file(path, name, source.text_field, breakage, stretch)
        return
    for adapted in read_adapted(path, name, source, breakage, removed, stretch):
        yield adapted.document


def read_adapted(
    path: Path,
    name: str,
    source: SourceSection,
    breakage: Breakage,
    removed: Removed,
    stretch: Stretch | None = None,
) -> Iterator[Adapted]:
    """Documents with what they were made from."""
    records = _records(path, name, source.text_field, breakage, stretch)
    adapt = _ADAPTERS.get(source.adapter)
    made = adapt(records, removed) if adapt else _with_addresses(records, source, breakage)
    for adapted in made:
        if _fits(adapted.document, breakage):
            yield adapted


def _records(
    path: Path, name: str, text_field: str, breakage: Breakage, stretch: Stretch | None
) -> Iterator[Record]:
    """Rows of JSON lines and Parquet with all their fields; of other files, their texts."""
    is_rows = format_of(name) in ("json lines", "parquet")
    for document in read_file(path, name, "" if is_rows else text_field, breakage, stretch):
        fields = json.loads(document.text) if is_rows else {text_field: document.text}
        yield Record(document.name, fields, text_field)


def _with_addresses(
    records: Iterator[Record], source: SourceSection, breakage: Breakage
) -> Iterator[Adapted]:
    """Texts as they are, with the address that is in a field of each."""
    for record in records:
        text, url = (record.fields.get(name) for name in (source.text_field, source.url_field))
        if not isinstance(text, str):
            breakage.broken(
                record.name,
                f"no text in field {source.text_field!r} (data.sources.text_field); its fields: "
                f"{', '.join(list(record.fields)[:8]) or 'none'}",
            )
        elif not text or text.isspace():
            breakage.empty(record.name)
        else:
            yield Adapted(text, Document(text, record.name, url if isinstance(url, str) else ""))


def _fits(document: Document, breakage: Breakage) -> bool:
    """Whether it is a text that UTF-8 can hold; JSON may hold halves of surrogate pairs."""
    if len(document.text) > MAX_LINE_BYTES:
        breakage.broken(document.name, f"longer than {MAX_LINE_BYTES >> 20} MiB")
        return False
    if not document.text.isascii():
        try:
            document.text.encode()
        except UnicodeEncodeError as error:
            at = f"{error.start:,}"
            breakage.broken(document.name, f"half of a surrogate pair at character {at}")
            return False
    return True
