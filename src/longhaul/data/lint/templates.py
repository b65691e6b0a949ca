"""Templates: pieces of which most has the same words around other names and numbers."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

from longhaul.data.lint.sample import Piece

_WORDS = 4
"""Of an n-gram. Three follow each other in any two texts of a language, and five rarely survive in
a template with many gaps."""
_FEWEST_PIECES = 8
_COMMON = 0.02
"""Share of pieces with an n-gram, from which on it belongs to a template or to the language."""
_MOSTLY = 0.5
"""Share of a piece's n-grams that are common."""
_TOKEN = re.compile(r"\d+(?:[.,:/-]\d+)*|\w+|[^\w\s]")
_MOST_CHARACTERS = 2048
"""Of a piece; a template shows in its beginning."""


@dataclass(frozen=True, slots=True)
class Templated:
    """Pieces that follow a template."""

    pieces: tuple[Piece, ...]
    share: float
    """Of all pieces looked at."""


def templated(pieces: Sequence[Piece]) -> Templated:
    """Pieces of which most n-grams stand in many others, numbers and upper case put aside."""
    shapes = [_shape(piece.text) for piece in pieces]
    counts = Counter(ngram for shape in shapes for ngram in set(shape))
    least = max(_FEWEST_PIECES, _COMMON * len(pieces))
    found = []
    for piece, shape in zip(pieces, shapes, strict=True):
        common = sum(counts[ngram] >= least for ngram in shape)
        if len(shape) >= _FEWEST_PIECES and common >= _MOSTLY * len(shape):
            found.append(piece)
    return Templated(tuple(found), len(found) / max(1, len(pieces)))


def _shape(text: str) -> list[int]:
    words = [
        "0" if word[0].isdecimal() else word.lower()
        for word in _TOKEN.findall(text[:_MOST_CHARACTERS])
    ]
    marks = [crc32(word.encode()) for word in words]
    return [hash(tuple(marks[begin : begin + _WORDS])) for begin in range(len(marks) - _WORDS + 1)]
