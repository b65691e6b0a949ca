"""Contamination: documents to train on that hold text which the model is to be judged by.

Words are compared without case and punctuation, thirteen at a time (GPT-3, arXiv 2005.14165,
appendix C; eight in documents with fewer than thirteen). What counts is how much of an evaluation
document a training document holds: a licence on top of both is little of either, and a question
that was copied into a long page is all of it. Enters: texts. Leaves: shares. Never known: where the
texts come from, but for `contamination_of`, which reads what a recipe names.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.config.data import DataSection, SourceSection
from longhaul.core.output import Say
from longhaul.core.units import count
from longhaul.data.documents import Breakage, Document
from longhaul.data.removed import KEPT, Removed
from longhaul.data.sources import locate

_UInt64s: TypeAlias = npt.NDArray[np.uint64]

LONG, SHORT = 13, 8
"""Words of an n-gram, and of one in a document that has fewer than `LONG`."""
_COMMON = 10
"""N-grams of more evaluation documents than these are phrases of the language, or a template
(GPT-3, appendix C)."""
_MOST_NGRAMS = 16 << 20
"""Kept of all evaluation documents, at 12 bytes; of more, every second one, fourth one, …"""
_MOST_WORDS = 1 << 20
_WORD = re.compile(r"\w+")
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


class _WordHashes:
    """64-bit hashes of words, the same on every machine."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, text: str) -> _UInt64s:
        known, words = self._known, _WORD.findall(text.lower())
        if len(known) > _MOST_WORDS:
            known.clear()
        for word in set(words) - known.keys():
            known[word] = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
        return np.fromiter(map(known.__getitem__, words), np.uint64, len(words))


def _ngrams(words: _UInt64s, length: int) -> _UInt64s:
    """Hash of each run of `length` words: a polynomial in them, mixed (SplitMix64's finaliser)."""
    count = len(words) - length + 1
    if count < 1:
        return np.empty(0, np.uint64)
    value = np.full(count, length, np.uint64)
    with np.errstate(over="ignore"):
        for place in range(length):
            value = value * _MULTIPLIER + words[place : place + count]
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Overlap:
    """What a document has in common with the evaluation document it holds most of."""

    share: float
    """Of that document's n-grams, those that this one has too."""
    with_document: str
    """Its set and name; empty if there is none."""


class EvaluationText:
    """The n-grams of everything that the model is judged by, in bounded memory. It is made once and
    can be pickled: jobs get a copy.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.too_short = 0
        """Documents with fewer than eight words, in which nothing can be found."""
        self._parts: list[tuple[_UInt64s, npt.NDArray[np.int32]]] = []
        self._held = 0
        self._words = _WordHashes()
        self._mask = np.uint64(0)
        self._sealed: tuple[_UInt64s, npt.NDArray[np.int32], npt.NDArray[np.int64]] | None = None
        self.has_short = False

    def add(self, set_name: str, document: Document) -> None:
        """One more document of the set of this name."""
        words = self._words.of(document.text)
        if len(words) < SHORT:
            self.too_short += 1
            return
        length = LONG if len(words) >= LONG else SHORT
        self.has_short |= length == SHORT
        number = len(self.names)
        self.names.append(f"{set_name}: {document.name}")
        hashes = np.unique(_ngrams(words, length))
        hashes = hashes[(hashes & self._mask) == 0]
        self._parts.append((hashes, np.full(len(hashes), number, np.int32)))
        self._held += len(hashes)
        self._sealed = None
        while self._held > _MOST_NGRAMS:
            # A deterministic sample: the same n-grams are looked for in training documents.
            self._mask = (self._mask << np.uint64(1)) | np.uint64(1)
            kept = [(h & self._mask) == 0 for h, _ in self._parts]
            self._parts = [(h[k], n[k]) for (h, n), k in zip(self._parts, kept, strict=True)]
            self._held = sum(len(hashes) for hashes, _ in self._parts)

    @property
    def sampled(self) -> int:
        """One n-gram in so many is kept."""
        return int(self._mask) + 1

    def overlap(self, text: str, words: _WordHashes) -> Overlap:
        """How much of which evaluation document a text holds."""
        hashes, numbers, sizes = self._sorted()
        found = words.of(text)
        own = [_ngrams(found, LONG)]
        if self.has_short:
            own.append(_ngrams(found, SHORT))
        wanted = np.unique(np.concatenate(own))
        wanted = wanted[(wanted & self._mask) == 0]
        begins = np.searchsorted(hashes, wanted, "left")
        ends = np.searchsorted(hashes, wanted, "right")
        hit = ends > begins
        if not hit.any():
            return Overlap(0.0, "")
        places = np.concatenate(
            [np.arange(b, e) for b, e in zip(begins[hit], ends[hit], strict=True)]
        )
        counts = np.bincount(numbers[places], minlength=len(sizes))
        shares = counts / np.maximum(sizes, 1)
        best = int(shares.argmax())
        return Overlap(float(shares[best]), self.names[best])

    def _sorted(self) -> tuple[_UInt64s, npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        if self._sealed is None:
            parts = self._parts or [(np.empty(0, np.uint64), np.empty(0, np.int32))]
            hashes = np.concatenate([part[0] for part in parts])
            numbers = np.concatenate([part[1] for part in parts])
            order = np.argsort(hashes, kind="stable")
            hashes, numbers = hashes[order], numbers[order]
            # Sizes count what is common as well: a document of templates alone is in no text.
            sizes = np.bincount(numbers, minlength=len(self.names))
            _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
            rare = counts[inverse] <= _COMMON
            self._parts = [(hashes, numbers)]
            self._sealed = hashes[rare], numbers[rare], sizes
        return self._sealed


class Contamination:
    """Looks at documents to train on, one by one; picklable."""

    def __init__(
        self, text: EvaluationText, action: Literal["report", "remove"], max_share: float
    ) -> None:
        self.text = text
        self._removes = action == "remove"
        self._max_share = max_share
        self._words = _WordHashes()

    def check(self, document: Document) -> Overlap:
        """How much of an evaluation document it holds."""
        return self.text.overlap(document.text, self._words)

    def keep(self, document: Document, removed: Removed) -> bool:
        """Whether to train on it; one that holds too much is counted, left out or not."""
        overlap = self.check(document)
        if overlap.share <= self._max_share:
            return True
        set_name = overlap.with_document.partition(":")[0]
        reason = f"contaminated by {set_name}"
        if not self._removes:
            reason = KEPT + reason
        where = f"{document.name} ({overlap.share:.0%} of {overlap.with_document})"
        removed.drop(reason, where, document.text)
        return not self._removes


def evaluation_identities(data: DataSection, seed: int, downloads: Path, say: Say) -> list[Any]:
    """What the evaluation sets consist of, as `Corpus.identity`."""
    sets = data.contamination.evaluation_sets
    return [locate(SourceSection(path=path), seed, downloads, say).identity for path in sets]


def contamination_of(
    data: DataSection,
    seed: int,
    downloads: Path,
    say: Say,
    held_out: Iterable[Document] = (),
) -> Contamination | None:
    """What a recipe asks for; None if it does not. `held_out`: documents that are held out of its
    own sources. DataError if an evaluation set is missing or broken.
    """
    settings = data.contamination
    if settings.action == "off":
        return None
    text = EvaluationText()
    for document in held_out:
        text.add("held out", document)
    for path in settings.evaluation_sets:
        corpus = locate(SourceSection(path=path), seed, downloads, say)
        breakage = Breakage(corpus.name, data.max_broken_fraction)
        for document in corpus.documents(breakage):
            text.add(corpus.name, document)
        breakage.judge()
    short = f"; {count(text.too_short, 'document')} of fewer than {SHORT} words left out"
    say(
        f"contamination: {count(len(text.names), 'document')} to look for"
        f"{short if text.too_short else ''}"
        + (f"; one run of words in {text.sampled} is compared" if text.sampled > 1 else "")
    )
    return Contamination(text, settings.action, settings.max_share)


def kept(
    documents: Iterable[Document], contamination: Contamination, removed: Removed
) -> Iterator[Document]:
    """Those of the documents that may be trained on."""
    return (each for each in documents if contamination.keep(each, removed))
