"""What the stage found, to look at: duplicates by source, sizes of clusters, the largest ones."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longhaul.core.files import write_json
from longhaul.data.corpus.dedup.buckets import Documents
from longhaul.data.corpus.dedup.components import Pairs
from longhaul.data.corpus.dedup.signatures import in_words, jaccard, shingles
from longhaul.data.corpus.parts import Part, part_columns

REPORT = "report.json"
ELSEWHERE = 0xFFFFFFFFFFFFFFFF
"""Stands for a document that the data has in other form, as tokens."""
_MOST_CLUSTERS = 12
_MOST_MEMBERS = 4
_EXCERPT = 1200
"""Characters of a document that are shown."""


@dataclass(frozen=True, slots=True)
class Found:
    """A document as a person knows it."""

    number: int
    source: str
    name: str
    text: str

    @property
    def words(self) -> str:
        """Its name and where it is from."""
        return f"{self.name} ({self.source})"


@dataclass(frozen=True)
class Findings:
    """A finished stage, read back."""

    folder: Path
    """That of the stage."""
    parts: tuple[Part, ...]
    sources: tuple[str, ...]
    """Name of each part's source."""

    @cached_property
    def _exact(self) -> Pairs:
        return _pairs(self.folder / "exact.npy")

    @cached_property
    def _near(self) -> Pairs:
        return _pairs(self.folder / "near.npy")

    @cached_property
    def similar(self) -> Pairs:
        """Pairs of documents that were found similar, shape (pairs, 2)."""
        return _pairs(self.folder / "pairs.npy")

    @cached_property
    def _members(self) -> tuple[Documents, Documents, npt.NDArray[np.bool_]]:
        """Each document of a cluster, sorted; who stays for it; whether it is an exact copy."""
        copies, originals = self._exact.T
        near, kept = self._near.T
        finally_kept = _replaced(originals, near, kept)
        documents, first = np.unique(np.concatenate([copies, near]), return_index=True)
        stays = np.concatenate([finally_kept, kept])[first]
        exact = np.isin(documents, copies[copies != originals])
        return documents, stays, exact

    def cluster_of(self, number: int) -> list[int]:
        """The documents of its cluster, who stays first, then in the recipe's order; empty if it
        is like no other.
        """
        documents, stays, _ = self._members
        at = int(np.searchsorted(documents, np.uint64(number)))
        if at == len(documents) or int(documents[at]) != number:
            return []
        one = int(stays[at])
        return [one, *(d for d in documents[stays == stays[at]].tolist() if d != one)]

    def original(self, number: int) -> int:
        """The document of which it is an exact copy; itself if it is none."""
        at = np.flatnonzero(self._exact[:, 0] == np.uint64(number))
        return int(self._exact[at[0], 1]) if len(at) else number

    def by_source(self) -> list[dict[str, Any]]:
        """Dropped documents by their source and that of the one which stays."""
        documents, stays, exact = self._members
        gone = documents != stays
        counted: Counter[tuple[str, str, bool]] = Counter(
            (self._source(one), self._source(other), bool(copy))
            for one, other, copy in zip(
                documents[gone].tolist(), stays[gone].tolist(), exact[gone].tolist(), strict=True
            )
        )
        pairs = sorted({(one, other) for one, other, _ in counted})
        return [
            {"dropped": one, "kept": other, "exact": counted[one, other, True],
             "near": counted[one, other, False]}
            for one, other in pairs
        ]  # fmt: skip

    def sizes(self) -> dict[int, int]:
        """How many clusters there are of each size, the document that stays counted."""
        _, counts = self._clusters
        sizes, times = np.unique(counts, return_counts=True)
        return dict(zip(sizes.tolist(), times.tolist(), strict=True))

    @cached_property
    def _clusters(self) -> tuple[Documents, npt.NDArray[np.int64]]:
        documents, stays, _ = self._members
        ones, counts = np.unique(stays, return_counts=True)
        # One that is known in other form only is no document of a part.
        return ones, counts + np.array(~np.isin(ones, documents), np.int64)

    def largest(self) -> list[list[int]]:
        """The largest clusters, the document that stays first."""
        ones, counts = self._clusters
        order = np.lexsort((ones, -counts))[:_MOST_CLUSTERS]
        documents, stays, _ = self._members
        return [
            [one, *(d for d in documents[stays == np.uint64(one)].tolist() if d != one)]
            for one in ones[order].tolist()
        ]

    def documents(self, numbers: Iterable[int]) -> dict[int, Found]:
        """Names and texts; each part is read once."""
        wanted: dict[int, list[int]] = {}
        made: dict[int, Found] = {}
        for number in sorted(set(numbers)):
            if number == ELSEWHERE:
                made[number] = Found(number, "tokens", "a document that comes as tokens", "")
            else:
                wanted.setdefault(number >> 32, []).append(number)
        for part, own in wanted.items():
            columns = part_columns(self.parts[part].path, ["name", "text"])
            taken = columns.take([number & 0xFFFFFFFF for number in own]).to_pylist()
            for number, row in zip(own, taken, strict=True):
                made[number] = Found(number, self.sources[part], row["name"], row["text"])
        return made

    def numbered(self, name: str) -> list[int]:
        """Documents of this name; several sources may have one."""
        found = []
        for number, part in enumerate(self.parts):
            names = part_columns(part.path, ["name"]).column("name").to_pylist()
            found += [number << 32 | row for row, other in enumerate(names) if other == name]
        return found

    def report(self) -> dict[str, Any]:
        """All of it as plain values: counts, sizes, and the largest clusters with excerpts."""
        largest = self.largest()
        shown = [cluster[:_MOST_MEMBERS] for cluster in largest]
        found = self.documents(number for cluster in shown for number in cluster)
        documents, stays, exact = self._members
        dropped = int(np.sum(documents != stays))
        return {
            "documents": sum(part.num_documents for part in self.parts),
            "exact": int(exact.sum()),
            "near": dropped - int(exact.sum()),
            "clusters": len(self._clusters[0]),
            "by_source": self.by_source(),
            "sizes": {str(size): times for size, times in self.sizes().items()},
            "largest": [
                {"size": len(cluster), "members": _shown([found[n] for n in some])}
                for cluster, some in zip(largest, shown, strict=True)
            ],
        }

    def write_report(self) -> dict[str, Any]:
        """The report, which is kept beside what it tells of."""
        made = self.report()
        write_json(self.folder / REPORT, made)
        return made

    def _source(self, number: int) -> str:
        return "tokens" if number == ELSEWHERE else self.sources[number >> 32]


def _pairs(path: Path) -> Pairs:
    found: Pairs = np.load(path)
    return found.reshape(-1, 2)


def _replaced(values: Documents, old: Documents, new: Documents) -> Documents:
    """Values, those in `old` (sorted) by their partners in `new`."""
    if not len(old):
        return values
    at = np.minimum(np.searchsorted(old, values), len(old) - 1)
    return np.where(old[at] == values, new[at], values)


def _shown(members: Sequence[Found]) -> list[dict[str, Any]]:
    """With the similarity of each to the one that stays."""
    kept = shingles(in_words(members[0].text))
    return [
        {
            "source": member.source,
            "name": member.name,
            "characters": len(member.text),
            "similarity": round(jaccard(kept, shingles(in_words(member.text))), 4),
            "excerpt": member.text[:_EXCERPT],
        }
        for member in members
    ]
