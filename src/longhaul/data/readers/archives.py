"""Archives: the text in a WebDataset tar and in WARC or WET; what is no text is counted apart."""

import json
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from longhaul.core.errors import UsageError
from longhaul.data.documents import MAX_LINE_BYTES, Breakage, Document
from longhaul.data.readers.html import page_text
from longhaul.data.readers.rows import Broken, EndedEarly, checked, decoded, field_in
from longhaul.data.readers.streams import FileStream

_BLOCK = 512
_SKIPPED_BYTES = 1 << 20
_CUT = "ends in the middle of an entry: it was truncated"


def tar_documents(
    opened: FileStream, name: str, text_field: str, breakage: Breakage
) -> Iterator[Document]:
    """The samples of a tar: files of one name, of which `.txt` is the text, or else `.json` has it
    in `text_field` (WebDataset's convention; files of a sample follow each other).
    """
    if opened.size % _BLOCK and not opened.is_compressed:
        # Whole entries are read all the same; the last one says more when it is reached.
        cut: EndedEarly | None = opened.ended_early(_CUT)
    else:
        cut = None
    sample, members = "", dict[str, bytes | None]()
    try:
        with tarfile.open(fileobj=opened.stream, mode="r|") as tar:
            for entry in tar:
                if not entry.isfile():
                    continue
                key, kind = _split(entry.name)
                if key != sample:
                    yield from _sample(name, sample, members, text_field, breakage)
                    sample, members = key, {}
                members[kind] = _content(tar, entry) if kind in ("txt", "json") else b""
    except tarfile.TarError as error:
        yield from _sample(name, sample, members, text_field, breakage)
        raise opened.ended_early(f"cannot be read as a tar ({error})") from None
    yield from _sample(name, sample, members, text_field, breakage)
    if cut is not None:
        raise cut


def _split(path: str) -> tuple[str, str]:
    """`a/b.seg.txt` is of sample `a/b` and kind `seg.txt`."""
    base, dot, kind = PurePosixPath(path).name.partition(".")
    folder = path[: len(path) - len(PurePosixPath(path).name)]
    return f"{folder}{base}", kind.lower() if dot else ""


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes | None:
    if entry.size > MAX_LINE_BYTES:
        return None
    file = tar.extractfile(entry)
    return b"" if file is None else file.read()


def _sample(
    archive: str, sample: str, members: dict[str, bytes | None], field: str, breakage: Breakage
) -> Iterator[Document]:
    if not members:
        return
    kind = next((kind for kind in ("txt", "json") if kind in members), "")
    name = f"{archive}:{sample}.{kind or next(iter(members))}"
    breakage.num_seen += 1
    if not kind:
        breakage.without_text(name)
        return
    try:
        text = _member_text(members[kind], kind, field)
    except Broken as problem:
        breakage.broken(archive, f"{sample}.{kind}: {problem}")
        return
    if text and not text.isspace():
        yield Document(text, name)
    else:
        breakage.empty(name)


def _member_text(content: bytes | None, kind: str, field: str) -> str:
    if content is None:
        raise Broken(f"longer than {MAX_LINE_BYTES >> 20} MiB")
    text = decoded(content.removeprefix(b"\xef\xbb\xbf"))
    if kind == "txt":
        return text
    try:
        return checked(field_in(json.loads(text), field))
    except (ValueError, RecursionError) as error:
        raise Broken(f"not JSON ({error})") from None


def warc_documents(opened: FileStream, name: str, breakage: Breakage) -> Iterator[Document]:
    """The text of a WARC file's records, `crawl.warc.gz:17` for the seventeenth: `conversion` as it
    is (WET), of a `response` or `resource` the text of plain text and HTML.
    """
    try:
        from warcio.archiveiterator import ArchiveIterator
        from warcio.exceptions import ArchiveLoadFailed
    except ImportError:
        raise UsageError(
            f"{name}: WARC and WET are read by the package warcio, which is not installed",
            "pip install 'longhaul[corpus]'",
        ) from None

    number, record = 0, None
    try:
        for number, record in enumerate(ArchiveIterator(opened.stream), 1):
            if record.rec_type in ("response", "resource", "conversion"):
                yield from _record(name, number, record, breakage)
    except ArchiveLoadFailed as error:
        raise opened.ended_early(f"cannot be read as WARC ({error})") from None
    if record is not None and record.raw_stream.limit > 0:
        # What the last record says it holds did not come.
        raise opened.ended_early(_CUT)
    if number == 0:
        breakage.empty(name)


def _record(name: str, number: int, record: Any, breakage: Breakage) -> Iterator[Document]:
    breakage.num_seen += 1
    where = f"{name}:{number}"
    stated = record.http_headers or record.rec_headers
    kind = str(stated.get_header("Content-Type") or "")
    if not _is_page(record, kind):
        breakage.without_text(where)
        return
    content = record.content_stream().read(MAX_LINE_BYTES + 1)
    while record.content_stream().read(_SKIPPED_BYTES):
        pass
    if record.raw_stream.limit > 0:
        return  # it is the last one, and cut
    try:
        if len(content) > MAX_LINE_BYTES:
            raise Broken(f"longer than {MAX_LINE_BYTES >> 20} MiB")
        text = checked(page_text(content, kind))
    except Broken as problem:
        breakage.broken(name, str(problem), number)
        return
    if text and not text.isspace():
        yield Document(text, where)
    else:
        breakage.empty(where)


def _is_page(record: Any, kind: str) -> bool:
    media = kind.partition(";")[0].strip().lower()
    if record.rec_type == "conversion":
        return media in ("", "text/plain")
    status = record.http_headers.get_statuscode() if record.http_headers else "200"
    return status == "200" and media in ("text/plain", "text/html", "application/xhtml+xml")
