"""The stage: which rows each part loses, for which document that stays, and how similar it is."""

import hashlib
import importlib.util
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longhaul.config.data import DedupSection
from longhaul.core.errors import RecipeError
from longhaul.core.output import Say
from longhaul.core.units import count, short_seconds
from longhaul.data.corpus.dedup.buckets import Documents, bits_for, gather, runs, save, scatter
from longhaul.data.corpus.dedup.components import Clusters, Pairs, keep_one
from longhaul.data.corpus.dedup.signatures import HASHES, band_keys, in_words, rows_for, signatures
from longhaul.data.corpus.dedup.similar import (
    doubtful,
    pairs_of_buckets,
    similarities,
    store_shingles,
)
from longhaul.data.corpus.engine import Resources, run_jobs
from longhaul.data.corpus.parts import (
    DIGEST_BYTES,
    Part,
    beside,
    mark,
    marked,
    part_columns,
    part_digests,
)
from longhaul.data.corpus.progress import CorpusProgress

_FORMAT = 2
DROPPED = "dropped"
"""Folder of what each part loses."""
SUMMARY = "duplicates"
"""Marker of the whole stage."""


@dataclass(frozen=True)
class DedupStage:
    """Finds the duplicates of these parts; every step is made once, and goes on when killed."""

    parts: tuple[Part, ...]
    names: tuple[str, ...]
    """What each part is called in the stage's folder."""
    settings: DedupSection
    exact: bool
    known: Collection[bytes]
    """Digests of documents that the data has in other form."""
    home: Path
    resources: Resources
    say: Say

    @property
    def folder(self) -> Path:
        """Named after all that decides what is dropped."""
        whole = hashlib.sha256(b"".join(sorted(self.known))).hexdigest()
        decisive: list[Any] = [_FORMAT, self.names, self.exact, whole]
        if self.settings.threshold is not None:
            import daft

            decisive += [self.settings.threshold, self.settings.keep, daft.__version__]
        digest = hashlib.sha256(json.dumps(decisive).encode()).hexdigest()
        return self.home / f"duplicates-{digest[:12]}"

    def run(self) -> Path:
        """Find them, unless that is done; the folder with a `.npy` of rows for each part.
        RecipeError if near ones are wanted of libraries that are not installed.
        """
        if self.settings.threshold is not None:
            for library in ("daft", "scipy"):
                if importlib.util.find_spec(library) is None:
                    raise RecipeError(
                        f"data.dedup.threshold: near-duplicates need {library}, which is not "
                        "installed",
                        "pip install 'longhaul[corpus]'",
                    )
        folder = self.folder
        if marked(folder / SUMMARY) is not None:
            return folder / DROPPED
        (folder / DROPPED).mkdir(parents=True, exist_ok=True)
        same = self._exact(folder)
        copies = np.setdiff1d(same.documents, same.kept)
        near, similarity = self._near(folder, copies)
        dropped = np.union1d(copies, near.dropped)
        for number, name in enumerate(self.names):
            mine = dropped[(dropped >> np.uint64(32)) == number]
            rows = (mine & np.uint64(0xFFFFFFFF)).astype(np.int64)
            save(folder / DROPPED / f"{name}.npy", rows)
        save(folder / "exact.npy", np.stack([same.documents, same.kept], axis=1))
        save(folder / "near.npy", np.stack([near.documents, near.kept], axis=1))
        save(folder / "pairs.npy", similarity[0])
        save(folder / "similarities.npy", similarity[1])
        mark(folder / SUMMARY, {"exact": len(copies), "near": len(near.dropped)})
        self.say(
            f"data: {count(len(copies), 'exact duplicate')} and "
            f"{count(len(near.dropped), 'near-duplicate')} dropped"
        )
        return folder / DROPPED

    def _exact(self, folder: Path) -> Clusters:
        nobody = np.zeros(0, np.uint64)
        if not self.exact:
            return Clusters(nobody, nobody)
        total = sum(part.num_documents for part in self.parts) + len(self.known)
        bits = bits_for(total, 3)
        jobs = [
            _Digests(part, number, folder / f"{name}-digests", bits)
            for number, (part, name) in enumerate(zip(self.parts, self.names, strict=True))
        ]
        waiting = [job for job in jobs if marked(job.stem) is None]
        for _ in run_jobs(_scatter_digests, waiting, self.resources, light=True):
            pass
        stems = [job.stem for job in jobs]
        if self.known:
            # They count as a part behind all others whose documents win nevertheless.
            whole = np.frombuffer(b"".join(sorted(self.known)), ">u8").reshape(-1, 2)
            stem = folder / "known-digests"
            scatter(stem, np.insert(whole.astype(np.uint64), 2, _KNOWN, axis=1), bits)
            stems.append(stem)
        begins = [(marked(stem) or {})["begins"] for stem in stems]
        groups = [
            _Group(
                tuple(
                    (beside(stem, ".npy"), at[bucket], at[bucket + 1])
                    for stem, at in zip(stems, begins, strict=True)
                ),
                folder / f"same-{bucket:04d}.npy",
            )
            for bucket in range(1 << bits)
        ]
        waiting_groups = [job for job in groups if not job.out.exists()]
        for _ in run_jobs(_group_digests, waiting_groups, self.resources, light=True):
            pass
        found = np.concatenate([np.load(job.out) for job in groups])
        found = found[np.argsort(found[:, 0])]
        return Clusters(found[:, 0], found[:, 1])

    def _near(
        self, folder: Path, copies: Documents
    ) -> tuple[Clusters, tuple[Pairs, npt.NDArray[np.float64]]]:
        """Clusters, and the pairs that made them with their similarity."""
        nothing = np.zeros((0, 2), np.uint64), np.zeros(0)
        threshold = self.settings.threshold
        if threshold is None:
            return keep_one(nothing[0], None, "first"), nothing
        rows = rows_for(threshold)
        stems = self._sign(folder, copies, rows)
        total = sum(part.num_documents for part in self.parts) * (HASHES // rows)
        pairs = pairs_of_buckets(stems, bits_for(total, 2), folder, self.resources)
        values = similarities(pairs, folder, self.names, self.resources, by_text=False)
        unsure = doubtful(values, threshold)
        if unsure.any():
            store_shingles(pairs[unsure], self.parts, self.names, folder, self.resources)
            values[unsure] = similarities(
                pairs[unsure], folder, self.names, self.resources, by_text=True
            )
        similar = values >= threshold
        pairs, values = pairs[similar], values[similar]
        sizes = self._sizes(folder, np.unique(pairs)) if self.settings.keep == "longest" else None
        return keep_one(pairs, sizes, self.settings.keep), (pairs, values)

    def _sign(self, folder: Path, copies: Documents, rows: int) -> list[Path]:
        total = sum(part.num_documents for part in self.parts) * (HASHES // rows)
        bits = bits_for(total, 2)
        jobs = []
        for number, (part, name) in enumerate(zip(self.parts, self.names, strict=True)):
            mine = copies[(copies >> np.uint64(32)) == number] & np.uint64(0xFFFFFFFF)
            jobs.append(_Sign(part, number, folder, name, mine.astype(np.int64), rows, bits))
        waiting = [job for job in jobs if marked(folder / f"{job.name}-bands") is None]
        size = sum(part.num_bytes for part in self.parts)
        progress = CorpusProgress(self.say, "data: looking for near-duplicates", size)
        progress.begin_at(size - sum(job.part.num_bytes for job in waiting))
        for position, documents in run_jobs(_sign_part, waiting, self.resources):
            done = waiting[position].part.num_bytes
            progress.done(done, documents, done)
        self.say(f"data: signed all documents in {short_seconds(progress.elapsed)}")
        return [folder / f"{name}-bands" for name in self.names]

    def _sizes(self, folder: Path, documents: Documents) -> npt.NDArray[np.int64]:
        sizes = np.zeros(len(documents), np.int64)
        numbers = (documents >> np.uint64(32)).astype(np.int64)
        for number in np.unique(numbers).tolist():
            name, mine = self.names[number], numbers == number
            own = np.load(folder / f"{name}-sizes.npy")
            signed = np.load(folder / f"{name}-rows.npy")
            rows = (documents[mine] & np.uint64(0xFFFFFFFF)).astype(np.int64)
            sizes[mine] = own[np.searchsorted(signed, rows)]
        return sizes


_KNOWN = np.uint64(0xFFFFFFFFFFFFFFFF)
"""Stands for a document that is no text here."""


@dataclass(frozen=True, slots=True)
class _Digests:
    """A job: a part's digests into buckets."""

    part: Part
    number: int
    stem: Path
    bits: int


def _scatter_digests(job: _Digests) -> int:
    digests = part_digests(job.part.path)
    keys = np.frombuffer(digests.tobytes(), ">u8").reshape(-1, DIGEST_BYTES // 8)
    documents = _numbers(job.number, np.arange(len(keys)))
    scatter(job.stem, np.insert(keys.astype(np.uint64), 2, documents, axis=1), job.bits)
    return len(keys)


def _numbers(part: int, rows: npt.NDArray[np.int64]) -> Documents:
    return (np.uint64(part) << np.uint64(32)) | rows.astype(np.uint64)


@dataclass(frozen=True, slots=True)
class _Group:
    """A job: documents of one bucket that are the same."""

    stretches: tuple[tuple[Path, int, int], ...]
    out: Path


def _group_digests(job: _Group) -> int:
    found = [np.zeros((0, 2), np.uint64)]
    for run in runs(gather(job.stretches)):
        kept = run[-1] if run[-1] == _KNOWN else run[0]
        own = run[run != _KNOWN]
        found.append(np.stack([own, np.full(len(own), kept)], axis=1))
    pairs = np.concatenate(found)
    save(job.out, pairs)
    return len(pairs)


@dataclass(frozen=True, slots=True)
class _Sign:
    """A job: signatures and bands of a part's documents, copies left out."""

    part: Part
    number: int
    folder: Path
    name: str
    copies: npt.NDArray[np.int64]
    rows: int
    bits: int


def _sign_part(job: _Sign) -> int:
    column = part_columns(job.part.path, ["text"]).column("text")
    rows = np.setdiff1d(np.arange(len(column)), job.copies)
    texts = [in_words(text) for text in column.take(rows).to_pylist()] if len(rows) else []
    values = signatures(texts)
    save(job.folder / f"{job.name}-rows.npy", rows)
    save(job.folder / f"{job.name}-sizes.npy", np.array([len(text) for text in texts], np.int64))
    save(job.folder / f"{job.name}-signatures.npy", values)
    records = band_keys(values, _numbers(job.number, rows), job.rows)
    scatter(job.folder / f"{job.name}-bands", records, job.bits)
    return len(rows)
