"""Parts: a source's documents in Parquet files of some 32 MB of text, each with a marker beside it.

A part is whole once its marker is there. Its bytes depend on the documents alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError
from longhaul.core.files import write_atomically, write_json
from longhaul.core.units import Bytes
from longhaul.data.documents import Document, is_held_out, text_digest
from longhaul.data.removed import Removed

PART_BYTES = 32_000_000
"""Text after which a part is closed."""
_MOST_DOCUMENTS = 500_000
"""A part becomes one shard of tokens, which holds a million."""
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Part:
    """One of them, written."""

    path: Path
    num_documents: int
    num_bytes: Bytes
    """UTF-8 bytes of all its texts."""
    num_read: int
    """Documents of the unit that were read up to its end, those left out among them."""


def beside(path: Path, suffix: str) -> Path:
    """The file of this suffix that goes with a part, or with a stem that may have dots in it."""
    return path.with_name(path.name.removesuffix(".parquet") + suffix)


def mark(path: Path, facts: dict[str, Any]) -> None:
    """Say beside a file, or of a stage, that it is whole."""
    write_json(beside(path, ".json"), facts)


def marked(path: Path) -> dict[str, Any] | None:
    """What `mark` said; None if it is not whole, or not readable any more."""
    try:
        facts = json.loads(beside(path, ".json").read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


class PartWriter:
    """Writes documents to `UNIT-0000.parquet`, `UNIT-0001.parquet`, … in one folder."""

    def __init__(self, folder: Path, unit: str, whole: int = 0) -> None:
        """`whole`: parts that are there already."""
        self._folder = folder
        self._unit = unit
        self._number = whole
        self.removed = Removed()
        """What was left out since the last part; whoever reads keeps this one object."""
        self._start()

    def _start(self) -> None:
        self._names: list[str] = []
        self._texts: list[str] = []
        self._digests: list[bytes] = []
        self._num_bytes = 0

    def add(self, document: Document, num_read: int) -> None:
        """Append a document, the `num_read`-th of its unit; a full part is written."""
        content = document.text.encode()
        self._names.append(document.name)
        self._texts.append(document.text)
        self._digests.append(text_digest(content))
        self._num_bytes += len(content)
        if self._num_bytes >= PART_BYTES or len(self._texts) >= _MOST_DOCUMENTS:
            self.flush(num_read)

    def flush(self, num_read: int) -> None:
        """Write what has gathered, documents or only counts of what was left out."""
        if not self._texts and not self.removed.reasons:
            return
        path = self._folder / part_name(self._unit, self._number)
        _write(path, self._names, self._texts, self._digests)
        facts = {"documents": len(self._texts), "bytes": self._num_bytes, "read": num_read}
        mark(path, {**facts, "removed": self.removed.as_json()})
        self._number += 1
        self.removed.reasons.clear()
        self._start()


def part_name(unit: str, number: int) -> str:
    """Sorted by name, parts are in the order of their documents."""
    return f"{unit}-{number:06d}.parquet"


def _write(path: Path, names: list[str], texts: list[str], digests: list[bytes]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(
        {
            "name": pa.array(names, pa.large_string()),
            "text": pa.array(texts, pa.large_string()),
            "digest": pa.array(digests, pa.binary(DIGEST_BYTES)),
        }
    )
    write_atomically(
        path,
        lambda file: parquet.write_table(
            table, file, compression="zstd", compression_level=1, use_dictionary=False,
            write_statistics=False, write_page_checksum=True, store_schema=False,
        ),
    )  # fmt: skip


def part_of(path: Path) -> Part | None:
    """What its marker says; None if it is not whole."""
    facts = marked(path)
    if facts is None or not path.is_file():
        return None
    return Part(path, facts["documents"], facts["bytes"], facts["read"])


def part_columns(path: Path, columns: list[str]) -> Any:
    """Columns of a part, as an Arrow table, its pages' checksums compared. DataError if damaged."""
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(
            path, columns=columns, page_checksum_verification=True, use_threads=False
        )
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{path}: a part of a prepared corpus is damaged ({reason})",
            f"delete {path.parent.parent} and prepare the data again",
        ) from error


def part_texts(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Name, text and digest of a part's documents, in order."""
    table = part_columns(path, ["name", "text", "digest"])
    for batch in table.to_batches(1024):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def part_digests(path: Path) -> npt.NDArray[np.uint8]:
    """Digests of a part's texts, shape (documents, 16)."""
    column = part_columns(path, ["digest"]).column("digest").combine_chunks()
    return np.frombuffer(b"".join(column.to_pylist()), np.uint8).reshape(-1, DIGEST_BYTES)


def text_sizes(path: Path) -> npt.NDArray[np.int64]:
    """UTF-8 bytes of a part's texts, shape (documents,)."""
    import pyarrow.compute as pc

    sizes = pc.binary_length(part_columns(path, ["text"]).column("text"))
    return np.asarray(sizes.to_numpy(), np.int64)


def held_out_rows(digests: npt.NDArray[np.uint8], fraction: float) -> npt.NDArray[np.bool_]:
    """Which texts are for validation, shape (documents,)."""
    return np.array([is_held_out(row.tobytes(), fraction) for row in digests], bool)
