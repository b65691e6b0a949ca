"""Which pairs of documents are similar: those that share a band, told by true Jaccard where the
signatures leave a doubt.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longhaul.data.corpus.dedup.buckets import Documents, gather, runs, save
from longhaul.data.corpus.dedup.components import Pairs
from longhaul.data.corpus.dedup.signatures import HASHES, Shingles, in_words, jaccard, shingles
from longhaul.data.corpus.engine import Resources, run_jobs
from longhaul.data.corpus.parts import Part, beside, mark, marked, part_columns

_PAIRS_AT_ONCE = 50_000
_FEW = 4_000
"""Documents whose shingles one process makes in a second."""
_DOUBT = 3.0
"""Standard errors of an estimate within which the texts themselves are compared."""
_ROW = np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A job: pairs that share a band, of one bucket."""

    stretches: tuple[tuple[Path, int, int], ...]
    out: Path


def pairs_of_buckets(stems: Sequence[Path], bits: int, folder: Path, resources: Resources) -> Pairs:
    """Pairs with a band in common; each once, smaller numbers first.

    Of many documents in one band each is paired with the first and with the one before it: the
    texts of a template would make millions of pairs, and are one component all the same.
    """
    begins = [(marked(stem) or {})["begins"] for stem in stems]
    jobs = []
    for bucket in range(1 << bits):
        stretches = tuple(
            (beside(stem, ".npy"), at[bucket], at[bucket + 1])
            for stem, at in zip(stems, begins, strict=True)
        )
        jobs.append(_Bucket(stretches, folder / f"pairs-{bucket:04d}.npy"))
    waiting = [job for job in jobs if not job.out.exists()]
    for _ in run_jobs(_pairs_of_bucket, waiting, resources, light=True):
        pass
    found = [np.load(job.out) for job in jobs]
    return _unique(np.concatenate(found))


def _pairs_of_bucket(job: _Bucket) -> int:
    found = [np.zeros((0, 2), np.uint64)]
    for run in runs(gather(job.stretches)):
        own = np.unique(run)
        first = np.full(len(own) - 1, own[0])
        found.append(np.stack([first, own[1:]], axis=1))
        found.append(np.stack([own[1:-1], own[2:]], axis=1))
    pairs = _unique(np.concatenate(found))
    save(job.out, pairs)
    return len(pairs)


def _unique(pairs: Pairs) -> Pairs:
    return np.unique(pairs, axis=0) if len(pairs) else pairs.reshape(0, 2)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A job: similarity of these pairs by their signatures, or by their shingles."""

    pairs: Pairs
    folder: Path
    names: tuple[str, ...]
    """Of the parts, in order."""
    by_text: bool


def similarities(
    pairs: Pairs, folder: Path, names: tuple[str, ...], resources: Resources, *, by_text: bool
) -> npt.NDArray[np.float64]:
    """Of each pair: an estimate by signatures, or what the shingles say."""
    chunks = [
        _Compared(pairs[at : at + _PAIRS_AT_ONCE], folder, names, by_text)
        for at in range(0, len(pairs), _PAIRS_AT_ONCE)
    ]
    results = dict(run_jobs(_compare, chunks, resources, light=len(pairs) < _PAIRS_AT_ONCE))
    return np.concatenate([np.zeros(0), *(results[number] for number in sorted(results))])


def _compare(job: _Compared) -> npt.NDArray[np.float64]:
    parts, rows = _split(job.pairs)
    values = np.empty(len(job.pairs))
    if job.by_text:
        for at, ((a, b), (row, other)) in enumerate(zip(parts, rows, strict=True)):
            one = _stored(job.folder, job.names[a]).of(row)
            two = _stored(job.folder, job.names[b]).of(other)
            values[at] = jaccard(one, two)
        return values
    order = np.lexsort((parts[:, 1], parts[:, 0]))
    for group in _groups(parts[order]):
        own = order[group]
        a, b = (_signed(job.folder, job.names[n]) for n in parts[own[0]])
        values[own] = np.mean(a.of(rows[own, 0]) == b.of(rows[own, 1]), axis=1)
    return values


def _split(documents: Documents) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return (documents >> np.uint64(32)).astype(np.int64), (documents & _ROW).astype(np.int64)


def _groups(parts: npt.NDArray[np.int64]) -> Iterator[slice]:
    new = np.flatnonzero(np.any(parts[1:] != parts[:-1], axis=1)) + 1
    bounds = [0, *new.tolist(), len(parts)]
    for begin, end in itertools.pairwise(bounds):
        if end > begin:
            yield slice(begin, end)


class _Signed:
    """Signatures of a part's rows."""

    def __init__(self, folder: Path, name: str) -> None:
        self._rows = np.load(folder / f"{name}-rows.npy")
        self._values = np.load(folder / f"{name}-signatures.npy", mmap_mode="r")

    def of(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        return np.asarray(self._values[np.searchsorted(self._rows, rows)])


class _Stored:
    """Shingles of a part's rows."""

    def __init__(self, folder: Path, name: str) -> None:
        self._rows = np.load(folder / f"{name}-wanted.npy")
        self._ends = np.load(folder / f"{name}-ends.npy")
        self._values = np.load(folder / f"{name}-shingles.npy", mmap_mode="r")

    def of(self, row: int) -> Shingles:
        at = int(np.searchsorted(self._rows, row))
        begin = int(self._ends[at - 1]) if at else 0
        return np.asarray(self._values[begin : int(self._ends[at])])


_signed = lru_cache(maxsize=64)(_Signed)
_stored = lru_cache(maxsize=64)(_Stored)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A job: write the shingles of these rows of a part."""

    part: Path
    rows: npt.NDArray[np.int64]
    folder: Path
    name: str


def store_shingles(
    documents: Documents,
    parts: Sequence[Part],
    names: Sequence[str],
    folder: Path,
    resources: Resources,
) -> None:
    """Write the shingles of these documents, where `similarities` finds them."""
    numbers, rows = _split(np.unique(documents))
    jobs = [
        _Wanted(parts[n].path, rows[numbers == n], folder, names[n])
        for n in np.unique(numbers).tolist()
    ]
    waiting = [job for job in jobs if marked(folder / f"{job.name}-shingles") is None]
    for _ in run_jobs(_store, waiting, resources, light=len(documents) < _FEW):
        pass


def _store(job: _Wanted) -> int:
    column = part_columns(job.part, ["text"]).column("text")
    sets = [shingles(in_words(column[int(row)].as_py())) for row in job.rows]
    save(job.folder / f"{job.name}-wanted.npy", job.rows)
    save(job.folder / f"{job.name}-ends.npy", np.cumsum([len(each) for each in sets]))
    save(job.folder / f"{job.name}-shingles.npy", np.concatenate(sets))
    mark(job.folder / f"{job.name}-shingles", {"documents": len(sets)})
    return len(sets)


def doubtful(estimates: npt.NDArray[np.float64], threshold: float) -> npt.NDArray[np.bool_]:
    """Which estimates may lie on the other side of the threshold."""
    error = float(np.sqrt(threshold * (1 - threshold) / HASHES))
    near: npt.NDArray[np.bool_] = np.abs(estimates - threshold) <= _DOUBT * error + 1 / HASHES
    return near
