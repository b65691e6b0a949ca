"""Boilerplate: paragraphs that stand in many documents, cut from all but the first of them.

A paragraph ends at a blank line, and is compared by 64 bits of a hash, neither case nor white space
counted (as CCNet does, Wenzek et al., arXiv 1911.00359, section 3.1).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longhaul.core.output import Say
from longhaul.core.units import Bytes, count, short_bytes
from longhaul.data.corpus.dedup.buckets import Records, bits_for, gather, save, scatter
from longhaul.data.corpus.dedup.signatures import plain
from longhaul.data.corpus.engine import Resources, run_jobs
from longhaul.data.corpus.parts import Part, beside, mark, marked, part_columns
from longhaul.data.corpus.progress import CorpusProgress
from longhaul.data.removed import CHANGED, Removed

_NOUN = "boilerplate paragraph"
REASON = f"{CHANGED}{_NOUN} cut"
_FORMAT = 1
_WHOLE = "paragraphs"
_FREQUENT = "frequent.npy"
_SHORTEST = 20
"""Characters; headings and closing braces are the same in many documents and no boilerplate."""
_LEAST_BYTES = 100
"""Of text to a paragraph, on average."""
_BLANK = re.compile(r"\n(?:[^\S\n]*\n)+")
"""It ends with a line, so that the next paragraph keeps its indentation."""


def cuts_of(folder: Path, name: str) -> dict[int, list[tuple[int, int]]]:
    """By row of a part, stretches of characters that go, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for row, begin, end in np.load(folder / f"{name}-cuts.npy").tolist():
        found.setdefault(row, []).append((begin, end))
    return found


def without(text: str, stretches: Sequence[tuple[int, int]]) -> str:
    """What is left of a text; nothing is put in."""
    left, at = [], 0
    for begin, end in stretches:
        left.append(text[at:begin])
        at = end
    return "".join([*left, text[at:]])


def paragraphs(text: str) -> Iterator[tuple[int, int, int]]:
    """Begin, end and key of each that is long enough; the blank lines after it are part of it."""
    begin = 0
    ends = [found.span() for found in _BLANK.finditer(text)]
    for last, end in [*ends, (len(text), len(text))]:
        words = plain(text[begin:last])
        if len(words) >= _SHORTEST:
            digest = hashlib.blake2b(words.encode(), digest_size=8).digest()
            yield begin, end, int.from_bytes(digest, "big")
        begin = end


@dataclass(frozen=True)
class ParagraphStage:
    """Finds the boilerplate of these parts; every step is made once, and goes on when killed."""

    parts: tuple[Part, ...]
    names: tuple[str, ...]
    """What each part is called."""
    most: int
    """Documents that a paragraph may stand in."""
    dropped: Path | None
    """Folder with the rows that each part loses, which do not count."""
    home: Path
    resources: Resources
    say: Say

    @property
    def folder(self) -> Path:
        """Named after all that decides what is cut."""
        before = None if self.dropped is None else self.dropped.parent.name
        decisive = json.dumps([_FORMAT, self.names, self.most, before])
        return self.home / f"paragraphs-{hashlib.sha256(decisive.encode()).hexdigest()[:12]}"

    def run(self) -> Path:
        """Find it, unless that is done; the folder for `cuts_of`."""
        folder = self.folder
        if marked(folder / _WHOLE) is None:
            folder.mkdir(parents=True, exist_ok=True)
            size = sum(part.num_bytes for part in self.parts)
            bits = bits_for(size // _LEAST_BYTES, 2)
            jobs = [
                _Part(part, number, name, self._dropped(name), folder, bits)
                for number, (part, name) in enumerate(zip(self.parts, self.names, strict=True))
            ]
            self._each_part(_scatter, jobs, "keys", size)
            self._count(folder, bits)
            self._each_part(_cut, jobs, "cuts", size)
            mark(folder / _WHOLE, {})
        whole = Removed()
        for name in self.names:
            whole.merge(self.removed(name))
        for found in whole.reasons.values():
            self.say(f"data: {count(found.documents, _NOUN)} cut ({short_bytes(found.num_bytes)})")
        return folder

    def removed(self, name: str) -> Removed:
        """What was cut from a part."""
        facts = marked(self.folder / f"{name}-cuts") or {"removed": {}}
        return Removed.from_json(facts["removed"])

    def _dropped(self, name: str) -> npt.NDArray[np.int64]:
        if self.dropped is None:
            return np.zeros(0, np.int64)
        rows: npt.NDArray[np.int64] = np.load(self.dropped / f"{name}.npy")
        return rows

    def _each_part(
        self, work: Callable[["_Part"], int], jobs: "Sequence[_Part]", kind: str, size: Bytes
    ) -> None:
        waiting = [job for job in jobs if marked(job.folder / f"{job.name}-{kind}") is None]
        progress = CorpusProgress(self.say, f"data: looking for boilerplate ({kind})", size)
        progress.begin_at(size - sum(job.part.num_bytes for job in waiting))
        for position, documents in run_jobs(work, waiting, self.resources):
            done = waiting[position].part.num_bytes
            progress.done(done, documents, done)

    def _count(self, folder: Path, bits: int) -> None:
        stems = [folder / f"{name}-keys" for name in self.names]
        begins = [(marked(stem) or {})["begins"] for stem in stems]
        jobs = [
            _Bucket(
                tuple(
                    (beside(stem, ".npy"), at[bucket], at[bucket + 1])
                    for stem, at in zip(stems, begins, strict=True)
                ),
                self.most,
                folder / f"frequent-{bucket:04d}.npy",
            )
            for bucket in range(1 << bits)
        ]
        waiting = [job for job in jobs if not job.out.exists()]
        for _ in run_jobs(_count_bucket, waiting, self.resources, light=True):
            pass
        # Buckets are named by leading bits, so that one after the other they are sorted.
        save(folder / _FREQUENT, np.concatenate([np.load(job.out) for job in jobs]))


@dataclass(frozen=True, slots=True)
class _Part:
    """A job: a part's paragraphs by key, or what is cut of them."""

    part: Part
    number: int
    name: str
    dropped: npt.NDArray[np.int64]
    folder: Path
    bits: int

    def texts(self) -> Iterator[tuple[int, str, str]]:
        """Row, name and text of what stays."""
        table = part_columns(self.part.path, ["name", "text"])
        gone = frozenset(self.dropped.tolist())
        row = 0
        for batch in table.to_batches(1024):
            for name, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if row not in gone:
                    yield row, name, text
                row += 1


def _scatter(job: _Part) -> int:
    keys: list[int] = []
    rows: list[int] = []
    documents = 0
    for row, _, text in job.texts():
        own = sorted({key for _, _, key in paragraphs(text)})
        keys += own
        rows += [job.number << 32 | row] * len(own)
        documents += 1
    records = np.array([keys, rows], np.uint64).T
    scatter(job.folder / f"{job.name}-keys", records, job.bits)
    return documents


@dataclass(frozen=True, slots=True)
class _Bucket:
    """A job: which keys of a bucket are in more than `most` documents, and in which one first."""

    stretches: tuple[tuple[Path, int, int], ...]
    most: int
    out: Path


def _count_bucket(job: _Bucket) -> int:
    records = gather(job.stretches)
    frequent: Records = np.zeros((0, 2), np.uint64)
    if len(records):
        _, first, counts = np.unique(records[:, 0], return_index=True, return_counts=True)
        frequent = records[first[counts > job.most]]
    save(job.out, frequent)
    return len(frequent)


def _cut(job: _Part) -> int:
    frequent = np.load(job.folder / _FREQUENT, mmap_mode="r")
    cuts: list[tuple[int, int, int]] = []
    removed = Removed()
    documents = 0
    for row, name, text in job.texts() if len(frequent) else ():
        documents += 1
        found = list(paragraphs(text))
        keys = np.array([key for _, _, key in found], np.uint64)
        at = np.minimum(np.searchsorted(frequent[:, 0], keys), len(frequent) - 1)
        number = np.uint64(job.number << 32 | row)
        goes = (frequent[at, 0] == keys) & (frequent[at, 1] != number)
        for place in np.flatnonzero(goes).tolist():
            begin, end, _ = found[place]
            cuts.append((row, begin, end))
            removed.drop(REASON, name, text[begin:end])
    out = job.folder / f"{job.name}-cuts"
    save(beside(out, ".npy"), np.array(cuts, np.int64).reshape(-1, 3))
    mark(out, {"removed": removed.as_json()})
    return documents
