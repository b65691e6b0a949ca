"""Keys of documents, brought together from all parts through buckets on disk.

Each part writes its keys once, ordered by bucket; whoever does a bucket reads its stretch of every
file. Memory is that of one bucket.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longhaul.core.files import write_atomically
from longhaul.core.units import Bytes
from longhaul.data.corpus.parts import beside, mark

Records = npt.NDArray[np.uint64]
"""Shape (records, columns): the key's columns, then the document's number."""
Documents = npt.NDArray[np.uint64]

BUCKET_BYTES: Bytes = 32_000_000
_MOST_BITS = 12


def bits_for(num_records: int, columns: int) -> int:
    """Leading bits of a key that name its bucket, so that a bucket fits into memory."""
    size = num_records * columns * 8
    return min(_MOST_BITS, max(0, int(np.ceil(np.log2(max(1, size / BUCKET_BYTES))))))


def scatter(stem: Path, records: Records, bits: int) -> None:
    """Write a part's records, ordered by bucket."""
    bucket = _bucket_of(records, bits)
    order = np.argsort(bucket, kind="stable")
    begins = np.searchsorted(bucket[order], np.arange((1 << bits) + 1))
    save(beside(stem, ".npy"), records[order])
    mark(stem, {"begins": begins.tolist()})


def _bucket_of(records: Records, bits: int) -> Records:
    if not bits:
        return np.zeros(len(records), np.uint64)
    return records[:, 0] >> np.uint64(64 - bits)


def gather(files: Sequence[tuple[Path, int, int]]) -> Records:
    """The stretches (file, begin, end) of one bucket, sorted by key and then by document."""
    stretches = []
    for path, begin, end in files:
        if end > begin:
            stretches.append(np.array(np.load(path, mmap_mode="r")[begin:end]))
    if not stretches:
        return np.zeros((0, 2), np.uint64)
    records: Records = np.concatenate(stretches)
    return records[np.lexsort(records.T[::-1])]


def runs(records: Records) -> Iterator[Documents]:
    """Documents with the same key, where there are several; first ones first."""
    if not len(records):
        return
    new = np.any(records[1:, :-1] != records[:-1, :-1], axis=1)
    bounds = np.concatenate([[0], np.flatnonzero(new) + 1, [len(records)]])
    for run in np.flatnonzero(np.diff(bounds) > 1):
        yield records[bounds[run] : bounds[run + 1], -1]


def save(path: Path, array: npt.NDArray[np.generic]) -> None:
    """Write an array, whole or not at all."""
    write_atomically(path, partial(np.save, arr=array))
