"""Groups of documents that are the same in the end, and the one of each that stays."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from longhaul.data.corpus.dedup.buckets import Documents

Pairs = npt.NDArray[np.uint64]
"""Shape (pairs, 2): numbers of documents, the smaller first."""


@dataclass(frozen=True)
class Clusters:
    """Who stays for whom."""

    documents: Documents
    """All that are in any cluster, sorted."""
    kept: Documents
    """Of each, the one of its cluster that stays."""

    @property
    def dropped(self) -> Documents:
        """Those that go, sorted."""
        gone: Documents = self.documents[self.documents != self.kept]
        return gone


def components(pairs: Pairs) -> tuple[Documents, npt.NDArray[np.int64]]:
    """Documents of all pairs, sorted, and the number of the connected component of each."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    documents, ends = np.unique(pairs.ravel(), return_inverse=True)
    ends = ends.reshape(-1, 2)
    size = len(documents)
    edges = coo_array((np.ones(len(ends), bool), (ends[:, 0], ends[:, 1])), shape=(size, size))
    return documents, connected_components(edges, directed=False)[1].astype(np.int64)


def keep_one(
    pairs: Pairs,
    sizes: npt.NDArray[np.int64] | None,
    rule: Literal["first", "longest"],
) -> Clusters:
    """Clusters of similar pairs; `sizes` of their documents in sorted order, for `longest`, of
    which the first stays among equals.
    """
    if not len(pairs):
        nobody = np.zeros(0, np.uint64)
        return Clusters(nobody, nobody)
    documents, labels = components(pairs)
    rank = np.zeros(len(documents), np.int64)
    if rule == "longest" and sizes is not None:
        rank = -sizes
    order = np.lexsort((documents, rank, labels))
    first = np.unique(labels[order], return_index=True)[1]
    best = documents[order][first]
    return Clusters(documents, best[labels])
