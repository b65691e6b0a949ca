"""One text with what several filters look at: words and lines, each taken apart once."""

import re
from functools import cached_property

import numpy as np
import numpy.typing as npt

_LETTER = re.compile(r"[^\W\d_]")


MOST_JUDGED = 4 << 20
"""Characters. A document may have 64 Mi, and its words would take 1.5 GB."""


class Prose:
    """A text, read-only, or as much of a long one as is judged. Words are what white space
    separates, as in Gopher's rules.
    """

    def __init__(self, text: str) -> None:
        self.num_characters = len(text)
        """Of the whole text."""
        self.text = text[:MOST_JUDGED]

    @cached_property
    def words(self) -> list[str]:
        """In order."""
        return self.text.split()

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Each different word and its number, from 0, by first occurrence."""
        return {word: number for number, word in enumerate(dict.fromkeys(self.words))}

    @cached_property
    def numbers(self) -> npt.NDArray[np.int64]:
        """The number of each word, shape (words,)."""
        number_of = self.vocabulary.__getitem__
        return np.fromiter(map(number_of, self.words), np.int64, len(self.words))

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Characters of each word, shape (words,)."""
        return np.fromiter(map(len, self.words), np.int64, len(self.words))

    @cached_property
    def lines(self) -> list[str]:
        """Lines that are not empty, as they stand: a closing brace in another block is no copy."""
        return [line for line in self.text.split("\n") if line and not line.isspace()]

    @cached_property
    def stripped_lines(self) -> list[str]:
        """The same lines without white space around them."""
        return [line.strip() for line in self.lines]

    @cached_property
    def paragraphs(self) -> list[str]:
        """What empty lines separate, without line ends around."""
        pieces = (piece.strip("\n") for piece in self.text.split("\n\n"))
        return [piece for piece in pieces if piece]

    @property
    def num_with_letter(self) -> int:
        """Words with at least one letter."""
        # Most words are in small letters, and asking for that costs a fifth of a search.
        has_letter = [w.islower() or _LETTER.search(w) is not None for w in self.vocabulary]
        return int(np.array(has_letter, bool)[self.numbers].sum()) if has_letter else 0
