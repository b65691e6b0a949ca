"""The first pass over a corpus: what is there, and what a tokenizer is made from."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from longhaul.config.data import DataSection, HeldOutSection, TokenizerSection
from longhaul.core.clocks import RealClock
from longhaul.core.errors import DataError
from longhaul.core.output import Say
from longhaul.core.units import Seconds, short_bytes, short_seconds
from longhaul.data.documents import Breakage, Document, cut_text, is_held_out, text_digest
from longhaul.data.sources import Corpus

_SAMPLE_PIECE_CHARACTERS = 1 << 16
FEWEST_FOR_DOCUMENT_SPLIT = 200
_PROGRESS_S = 10.0


Kept: TypeAlias = tuple[Document, int, bytes]
"""A document that is no duplicate, with its UTF-8 size and its hash."""


@dataclass(frozen=True, slots=True)
class SourceSurvey:
    """What one source holds, duplicates left out."""

    num_documents: int
    num_bytes: int
    num_held_out: int
    """Documents whose hash falls on the held-out side."""
    num_duplicates: int
    skipped: str

    def split(self, held_out: HeldOutSection) -> str:
        """`document` or `tail`.

        `auto` is by document for 200 documents or more; among so few it may happen that none
        falls on one side, and then it is by tail as well.
        """
        if held_out.by != "auto":
            return held_out.by
        enough = self.num_documents >= FEWEST_FOR_DOCUMENT_SPLIT
        both = 0 < self.num_held_out < self.num_documents
        return "document" if enough and both else "tail"


class Progress:
    """Says how far a long stage is, at most every ten seconds."""

    def __init__(self, say: Say, stage: str) -> None:
        self.say = say
        self._stage = stage
        self._clock = RealClock()
        self._began = self._last = self._clock.monotonic()

    def at(self, num_documents: int, num_bytes: int) -> None:
        """So much is done."""
        now = self._clock.monotonic()
        if now - self._last >= _PROGRESS_S:
            self._last = now
            self.say(
                f"{self._stage}: {num_documents:,} documents, {short_bytes(num_bytes)} so far "
                f"({short_bytes(num_bytes / (now - self._began))}/s)"
            )

    @property
    def elapsed(self) -> Seconds:
        """Seconds since the stage began."""
        return self._clock.monotonic() - self._began


def sample_pieces(text: str) -> Iterator[tuple[int, int, str]]:
    """Pieces of a text that may be sampled: the rank that decides (128 bits), bytes, piece."""
    for piece in cut_text(text, _SAMPLE_PIECE_CHARACTERS):
        content = piece.encode()
        yield int.from_bytes(text_digest(content), "big"), len(content), piece


class TextSample:
    """At most so many bytes of text, taken evenly over everything it is shown: the pieces with the
    smallest hashes, so that neither chance nor knowing the size of the corpus decides which.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self._count = 0
        self._kept: list[tuple[int, int, int, str]] = []  # largest hash first
        self._least_dropped = 1 << 128

    def show(self, text: str) -> None:
        """Consider a text."""
        for rank, size, piece in sample_pieces(text):
            if rank >= self._least_dropped:
                continue  # taking what still fits would depend on the order of the texts
            self._count += 1
            heapq.heappush(self._kept, (-rank, self._count, size, piece))
            self.num_bytes += size
            while self.num_bytes > self._max_bytes and len(self._kept) > 1:
                dropped, _, size, _ = heapq.heappop(self._kept)
                self.num_bytes -= size
                self._least_dropped = -dropped

    @property
    def has_dropped(self) -> bool:
        """Whether there was more than fits."""
        return self._least_dropped < 1 << 128

    def texts(self) -> list[str]:
        """The pieces kept, in the order they were shown."""
        return [piece for _, _, _, piece in sorted(self._kept, key=lambda kept: kept[1])]


@dataclass(frozen=True)
class Survey:
    """What the first pass found."""

    sources: tuple[SourceSurvey, ...]
    characters: frozenset[str]
    """Every character that occurs; filled for kind `characters` only."""
    sample: TextSample
    """Text to train on; filled for kind `bpe` only."""


def kept_documents(corpus: Corpus, breakage: Breakage, seen: set[bytes] | None) -> Iterator[Kept]:
    """A corpus's documents, each text once: not those whose digest is in `seen`, about 100 bytes of
    memory a document, to which all others are added. None keeps all.
    """
    for document in corpus.documents(breakage):
        content = document.text.encode()
        digest = text_digest(content)
        if seen is not None and digest in seen:
            breakage.num_duplicates += 1
            continue
        if seen is not None:
            seen.add(digest)
        yield document, len(content), digest


def take_survey(
    corpora: tuple[Corpus, ...],
    data: DataSection,
    tokenizer: TokenizerSection,
    say: Say,
    known: frozenset[bytes] = frozenset(),
) -> Survey:
    """Read every source once; `known` are digests of documents that the data has in other form.
    DataError if too much of one is broken, or nothing is readable.
    """
    seen = set(known) if data.drop_exact_duplicates else None
    characters: set[str] = set()
    sample = TextSample(int(tokenizer.training_mb * 1e6))
    surveys = []
    for corpus in corpora:
        progress = Progress(say, f"data: reading {corpus.name}")
        breakage = Breakage(corpus.name, data.max_broken_fraction)
        num_documents = num_bytes = num_held_out = 0
        for document, size, digest in kept_documents(corpus, breakage, seen):
            num_documents += 1
            num_bytes += size
            num_held_out += is_held_out(digest, data.held_out.fraction)
            if tokenizer.kind == "characters":
                characters.update(document.text)
            elif tokenizer.kind == "bpe":
                sample.show(document.text)
            progress.at(num_documents, num_bytes)
        breakage.judge()
        num_dropped, skipped = breakage.num_duplicates, breakage.summary()
        surveys.append(SourceSurvey(num_documents, num_bytes, num_held_out, num_dropped, skipped))
        if not num_documents:
            raise nothing_left(corpus.name, num_dropped, skipped)
        dropped = f"{num_dropped:,} exact duplicates dropped; " if seen is not None else ""
        say(
            f"data: {corpus.name}: {num_documents:,} documents, {short_bytes(num_bytes)} read in "
            f"{short_seconds(progress.elapsed)}; {dropped}{skipped or 'nothing broken'}"
        )
    return Survey(tuple(surveys), frozenset(characters), sample)


def nothing_left(name: str, num_duplicates: int, skipped: str) -> DataError:
    """Why a source has no document to train on."""
    reason = skipped or "no document in it"
    if num_duplicates:
        reason = f"all {num_duplicates:,} documents also occur in other sources"
    return DataError(f"{name}: nothing to train on ({reason})", "give it text, or leave it out")
