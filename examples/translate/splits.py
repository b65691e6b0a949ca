"""Train, validation and test by package, with no sentence of one in another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from examples.translate.catalogues import Pair
from examples.translate.text import key

from longhaul.data.corpus.dedup.signatures import in_words, jaccard, shingles

SIMILAR = 0.5
"""Jaccard similarity of runs of five words from which on two sentences are near duplicates. Lower
than the 0.8 that is usual for documents: one changed word of a sentence of twelve breaks five of
its eight runs."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The three parts, and how many pairs were left out to keep them apart."""

    train: list[Pair]
    valid: list[Pair]
    test: list[Pair]
    same: int
    """Held-out pairs whose source or target is in an earlier part, but for case, signs, numbers."""
    similar: int
    """Held-out pairs whose source is a near duplicate of one."""


class _Seen:
    """Sides of pairs that have been placed."""

    def __init__(self) -> None:
        self._keys: tuple[set[str], set[str]] = (set(), set())
        self._by_shingle: dict[int, list[int]] = {}
        self._texts: list[str] = []

    def add(self, pair: Pair) -> None:
        keys = key(pair.source), key(pair.target)
        for known, side in zip(self._keys, keys, strict=True):
            known.add(side)
        for shingle in shingles(in_words(keys[0])).tolist():
            self._by_shingle.setdefault(shingle, []).append(len(self._texts))
        self._texts.append(keys[0])

    def same(self, pair: Pair) -> bool:
        sides = zip(self._keys, (pair.source, pair.target), strict=True)
        return any(key(side) in known for known, side in sides)

    def similar(self, pair: Pair) -> bool:
        own = shingles(in_words(key(pair.source)))
        near = {n for shingle in own.tolist() for n in self._by_shingle.get(shingle, ())[:50]}
        return any(jaccard(own, shingles(in_words(self._texts[n]))) >= SIMILAR for n in near)


def split(parts: Mapping[str, Iterable[Pair]]) -> Splits:
    """The parts `train`, `valid` and `test` without what a part before them has already.

    Within `train` equal pairs are one; a source with two translations stays twice.
    """
    seen, same, similar = _Seen(), 0, 0
    made: dict[str, list[Pair]] = {}
    for part in ("train", "valid", "test"):
        kept = made[part] = []
        for pair in dict.fromkeys(parts.get(part, ())):
            if part != "train" and seen.same(pair):
                same += 1
            elif part != "train" and seen.similar(pair):
                similar += 1
            else:
                kept.append(pair)
                if part != "train":  # nor twice within a held-out part
                    seen.add(pair)
        if part == "train":
            unique = {(pair.source, pair.target): pair for pair in kept}
            kept[:] = unique.values()
            for pair in kept:
                seen.add(pair)
    return Splits(made["train"], made["valid"], made["test"], same, similar)
