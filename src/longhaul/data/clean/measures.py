"""Filters that hold one figure of a text against limits: Gopher's quality rules, length, entropy.

Sources: Rae et al. 2021, "Scaling Language Models: Methods, Analysis & Insights from Training
Gopher", appendix A.1.1; YaLM 100B's notes on its data (entropy "in both directions", without
figures).
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longhaul.config.corpus import FilterSection
from longhaul.data.clean.prose import Prose

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_BULLETS = ("•", "‣", "▶", "◀", "◦", "■", "□", "▪", "▫", "●", "○", "–", "-", "*")
_ELLIPSES = ("…", "...")
_FEWEST_BYTES = 500
_IN_WORD = re.compile(r"[\W_]*(\w+)")


@dataclass(frozen=True, slots=True)
class Limits:
    """Leaves out a text whose figure lies below `least` or above `most`."""

    name: str
    """The setting in `data.filters`."""
    measure: Callable[[Prose], float]
    least: float = 0.0
    most: float = math.inf

    def reason(self, prose: Prose) -> str | None:
        """Why a text goes; None if it stays."""
        value = self.measure(prose)
        if value < self.least:
            return f"{self.name} < {self.least:g}"
        return f"{self.name} > {self.most:g}" if value > self.most else None


def num_characters(prose: Prose) -> float:
    """Characters."""
    return float(prose.num_characters)


def num_words(prose: Prose) -> float:
    """Words."""
    return float(len(prose.words))


def mean_word_length(prose: Prose) -> float:
    """Characters in a word; 0 without words."""
    return float(prose.lengths.mean()) if len(prose.words) else 0.0


def symbols_per_word(prose: Prose) -> float:
    """Hash signs, or ellipses if they are more, over words."""
    text = prose.text
    ellipses = text.count("...") + text.count("…")
    return max(text.count("#"), ellipses) / max(1, len(prose.words))


def share_of_bullets(prose: Prose) -> float:
    """Lines that begin with a bullet, over lines that are not empty."""
    bullets = sum(line.startswith(_BULLETS) for line in prose.stripped_lines)
    return bullets / max(1, len(prose.lines))


def share_of_ellipses(prose: Prose) -> float:
    """Lines that end in an ellipsis, over lines that are not empty."""
    return sum(line.endswith(_ELLIPSES) for line in prose.stripped_lines) / max(1, len(prose.lines))


def share_with_letter(prose: Prose) -> float:
    """Words with a letter in them, over words."""
    return prose.num_with_letter / max(1, len(prose.words))


def num_stop_words(prose: Prose) -> float:
    """How many of the eight `STOP_WORDS` occur, in whatever case."""
    vocabulary = prose.vocabulary
    missing = [word for word in STOP_WORDS if word not in vocabulary]
    found = len(STOP_WORDS) - len(missing)
    if found >= 2:  # what is published asks for no more
        return float(found)
    bare = {match[1].lower() for word in vocabulary if (match := _IN_WORD.match(word))}
    return float(found + sum(word in bare for word in missing))


def bits_per_byte(prose: Prose) -> float:
    """Entropy of a byte of UTF-8 once the byte before is known, by the text's own counts of pairs;
    NaN, which no limit touches, for a text too short to tell.

    Measured: English, Russian, Korean, Chinese and Japanese prose 2.0 to 3.7, code from 1.5, one
    phrase again and again 1, base64 3.8 (of 1,000 bytes) to 5.8. Without the byte before, Chinese
    has more than base64, and a phrase as much as the text it is from.
    """
    content = np.frombuffer(prose.text.encode(), np.uint8)
    if len(content) < _FEWEST_BYTES:
        return math.nan
    pairs = content[:-1].astype(np.int64) * 256 + content[1:]
    return _entropy(np.bincount(pairs)) - _entropy(np.bincount(content[:-1]))


def _entropy(counts: npt.NDArray[np.int64]) -> float:
    """Bits; 0 for no counts."""
    present = counts[counts > 0]
    shares = present / max(1, present.sum())
    return float(-(shares * np.log2(shares)).sum())


def _measures() -> Iterator[tuple[str, Callable[[Prose], float], tuple[float, float], str]]:
    """Setting, figure, limits for `true`, preset; the cheapest first."""
    yield "length", num_characters, (0, math.inf), ""
    yield "entropy", bits_per_byte, (1.5, 4.2), ""
    yield "words", num_words, (50, 100_000), "gopher"
    yield "word_length", mean_word_length, (3, 10), "gopher"
    yield "symbols", symbols_per_word, (0, 0.1), "gopher"
    yield "bullets", share_of_bullets, (0, 0.9), "gopher"
    yield "ellipses", share_of_ellipses, (0, 0.3), "gopher"
    yield "letters", share_with_letter, (0.8, math.inf), "gopher"
    yield "stop_words", num_stop_words, (2, math.inf), "gopher"


def limits_of(settings: FilterSection) -> Iterator[Limits]:
    """The filters of this kind that a recipe turns on."""
    for name, measure, (least, most), preset in _measures():
        value = getattr(settings, name)
        if value is None:
            value = bool(preset) and getattr(settings, preset)
        if value is False:
            continue
        if isinstance(value, tuple):
            least, most = value
        elif value is not True:
            least, most = (value, most) if most == math.inf else (least, value)
        yield Limits(name, measure, least, most)
