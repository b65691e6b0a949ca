"""Any text in, both translations, the choice and its reasons out."""

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from examples.translate.features import Candidates, features
from examples.translate.judge import Judge
from examples.translate.neural import Neural
from examples.translate.statistical import Statistical
from examples.translate.text import (
    MOST_CHARACTERS,
    joined,
    marks,
    masked,
    plain,
    unmasked,
    words,
)

from longhaul import UsageError

MOST_TEXT = 20_000
"""Characters of a text in all."""
_BREAK = re.compile(r"(?<=[.!?;])\s+|\n+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Translation:
    """One sentence, translated."""

    source: str
    statistical: str
    neural: str
    chosen: str
    """`statistical` or `neural`."""
    probability: float
    """That the neural one is better, by the judge."""
    reasons: tuple[tuple[str, float, float], ...]
    """Features that moved the choice most: name, value, log-odds towards the neural one."""
    seconds: float

    @property
    def text(self) -> str:
        """The chosen translation."""
        return self.neural if self.chosen == "neural" else self.statistical


def chosen(candidates: Candidates, probability: float, threshold: float) -> str:
    """The system to show: the one that alone keeps the placeholders, else the judge's."""
    wanted = marks(candidates.source)
    kept = [marks(text) == wanted for text in candidates.texts]
    if kept[0] != kept[1]:
        return "statistical" if kept[0] else "neural"
    return "neural" if probability >= threshold else "statistical"


def sentences(text: str) -> list[str]:
    """A text in pieces to be translated, none empty, none longer than `MOST_CHARACTERS`.

    UsageError if there is no letter in it, or it is longer than `MOST_TEXT`.
    """
    clean = _CONTROL.sub(" ", text.encode("utf-8", "replace").decode())
    if len(clean) > MOST_TEXT:
        raise UsageError(
            f"the text has {len(clean):,} characters, more than {MOST_TEXT:,}",
            "give it in parts, or as a file with --batch",
        )
    if not any(letter.isalpha() for letter in clean):
        raise UsageError("the text has no word to translate", "give it some")
    pieces = []
    for part in _BREAK.split(clean):
        rest = plain(part)
        while len(rest) > MOST_CHARACTERS:
            cut = rest.rfind(" ", 1, MOST_CHARACTERS)
            cut = cut if cut > 0 else MOST_CHARACTERS
            pieces.append(rest[:cut])
            rest = rest[cut:].strip()
        if rest:
            pieces.append(rest)
    return pieces


@dataclass
class Hybrid:
    """Both systems and the judge between them."""

    statistical: Statistical
    neural: Neural
    judge: Judge
    beam: int = 4

    def candidates(self, sources: Sequence[str]) -> list[Candidates]:
        """Both translations of each masked sentence."""
        by_phrases = self.statistical.translate([words(source) for source in sources])
        written = self.neural.translate(sources, self.beam)
        texts = [joined(list(hypothesis.words)) for hypothesis in by_phrases]
        scores = self.neural.log_probabilities(sources, texts)
        return list(map(Candidates, sources, by_phrases, written, scores))

    def features(self, candidates: Candidates) -> dict[str, float]:
        """What the judge sees."""
        known = self.statistical
        return features(candidates, known.word_counts, known.log_probability)

    def translate(self, text: str) -> list[Translation]:
        """Each sentence of a text. UsageError as for `sentences`."""
        return [self._sentence(sentence) for sentence in sentences(text)]

    def _sentence(self, sentence: str) -> Translation:
        began = time.perf_counter()
        source, held = masked(sentence)
        (candidates,) = self.candidates([source])
        row = self.features(candidates)
        probability = float(self.judge.probability([row])[0])
        choice = chosen(candidates, probability, self.judge.threshold)
        one, other = (unmasked(repaired(source, side), held) for side in candidates.texts)
        reasons = tuple(self.judge.reasons(row))
        took = time.perf_counter() - began
        return Translation(sentence, one, other, choice, probability, reasons, took)


def by_length(sources: Sequence[str]) -> list[str]:
    """The group of each sentence by its words."""
    sizes = [len(words(source)) for source in sources]
    return ["1-3 words" if n <= 3 else "4-8 words" if n <= 8 else "9 and more" for n in sizes]


def by_rarest(sources: Sequence[str], counts: dict[str, int]) -> list[str]:
    """The group of each sentence by how often its rarest word was seen in training."""
    groups = []
    for source in sources:
        seen = Counter({word: counts.get(word, 0) for word in words(source)})
        least = min(seen.values(), default=0)
        groups.append("0: never seen" if least == 0 else "1 to 9" if least < 10 else "10 and more")
    return groups


def repaired(source: str, text: str) -> str:
    """A translation with the marks of its source: too many are dropped, missing ones appended."""
    wanted, kept = marks(source), []
    for word in words(text):
        if found := marks(word):
            mark = next(iter(found))
            if wanted[mark] <= 0:
                continue
            wanted[mark] -= 1
        kept.append(word)
    return joined(kept + list(wanted.elements()))
