"""Facts: what one pass over a source's documents says of it, in figures that can be judged."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longhaul.core.units import Bytes
from longhaul.data.lint.predictability import NgramModel, own_bits
from longhaul.data.lint.sample import Piece
from longhaul.data.lint.signs import Sign
from longhaul.data.lint.summary import SourceSummary
from longhaul.data.lint.templates import templated

_FEWEST_PIECES = 32
"""With fewer, a model of half of them has learned nothing (128 kB)."""
_MOST_OF_OTHERS = 200
"""Pieces of all other sources together that their model sees, as many as its own sees at most."""
_SHARED_BY = 0.1
"""Share of documents with a line, from which on it is boilerplate."""
_FEWEST_SHARING = 5


@dataclass(frozen=True, slots=True)
class Predicted:
    """Bits a byte of each sampled piece."""

    own: tuple[float, ...]
    """By a model of the other half of the sample."""
    others: tuple[float, ...]
    """By a model of the other sources' samples; empty if there are none."""

    @property
    def mean(self) -> float:
        """Of its own half."""
        return statistics.fmean(self.own)


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What is known of one source."""

    name: str
    num_documents: int
    num_bytes: Bytes
    lengths: dict[int, int]
    """Documents by the binary logarithm of their bytes."""
    largest: tuple[Bytes, str]
    signs: tuple[Sign, ...]
    copies: float
    """Share of documents that are exact copies of an earlier one."""
    copied: tuple[str, ...]
    shared_lines: tuple[tuple[str, int], ...]
    """Lines that a tenth of the documents have, and in how many they stand."""
    shared_bytes: float
    """Share of the text that those lines are."""
    pieces: tuple[Piece, ...]
    templated: tuple[Piece, ...]
    """Of the pieces, those that follow a template."""
    predicted: Predicted | None
    """None of a source that is too small."""


def facts_of(summaries: Sequence[SourceSummary]) -> list[SourceFacts]:
    """The facts of each source, told from the others where that says more."""
    samples = [summary.sample.pieces() for summary in summaries]
    return [
        _facts(summary, samples[number], [s for n, s in enumerate(samples) if n != number])
        for number, summary in enumerate(summaries)
    ]


def _facts(summary: SourceSummary, pieces: list[Piece], others: list[list[Piece]]) -> SourceFacts:
    least = max(_FEWEST_SHARING, _SHARED_BY * summary.num_documents)
    lines = summary.lines.most_frequent(least)
    shared = sum(len(line) * count for line, count in lines) / max(1, summary.num_characters)
    enough = len(pieces) >= _FEWEST_PIECES
    return SourceFacts(
        name=summary.name,
        num_documents=summary.num_documents,
        num_bytes=summary.num_bytes,
        lengths=dict(sorted(summary.lengths.items())),
        largest=summary.largest,
        signs=tuple(summary.signs.signs),
        copies=summary.duplicates.share(),
        copied=tuple(summary.duplicates.examples),
        shared_lines=tuple(lines),
        shared_bytes=min(1.0, shared),
        pieces=tuple(pieces),
        templated=templated(pieces).pieces if enough else (),
        predicted=_predicted(pieces, others) if enough else None,
    )


def _predicted(pieces: list[Piece], others: list[list[Piece]]) -> Predicted:
    texts = [piece.text for piece in pieces]
    large = [sample for sample in others if len(sample) >= _FEWEST_PIECES]
    if not large:
        return Predicted(tuple(own_bits(texts)), ())
    shown = [
        piece.text
        for sample in large
        for piece in sample[:: 1 + len(sample) * len(large) // _MOST_OF_OTHERS]
    ][:_MOST_OF_OTHERS]
    return Predicted(tuple(own_bits(texts)), tuple(NgramModel(shown).bits(texts)))
