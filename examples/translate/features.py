"""What the judge sees of a sentence and its two translations; never a reference.

Of each figure the first of a pair is the statistical system's, the second the neural one's.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from examples.translate.decoder import FEATURES as SCORES
from examples.translate.decoder import Hypothesis
from examples.translate.neural import Written
from examples.translate.text import joined, marks, words

_NUMBER = re.compile(r"\d+")
_SIGN = re.compile(r"[^\w\s]")


@dataclass(frozen=True, slots=True)
class Candidates:
    """A masked source and what both systems make of it."""

    source: str
    statistical: Hypothesis
    neural: Written
    neural_of_statistical: float
    """Log probability of the statistical system's words under the neural one, in nats a token."""

    @property
    def texts(self) -> tuple[str, str]:
        """Both translations, masked: the statistical one, the neural one."""
        return joined(list(self.statistical.words)), self.neural.text


def features(
    candidates: Candidates,
    word_counts: Mapping[str, int],
    language_model: Callable[[list[str]], float],
) -> dict[str, float]:
    """All features by name. `language_model`: log probability of a sentence of words, in nats.

    Raises nothing for any text; of an empty one ratios are 0.
    """
    source = words(candidates.source)
    texts = candidates.texts
    sides = [words(text) for text in texts]
    counts = [word_counts.get(word, 0) for word in source if marks(word) == {}] or [0]
    made = {
        "source_words": float(len(source)),
        "source_characters": float(len(candidates.source)),
        "rarest_count": math.log1p(min(counts)),
        "mean_count": sum(map(math.log1p, counts)) / len(counts),
        "unknown_words": float(sum(count == 0 for count in counts)),
        "unknown_share": sum(count == 0 for count in counts) / len(counts),
        "source_marks": float(sum(marks(candidates.source).values())),
        "source_capitals": _share(candidates.source, str.isupper),
        "source_first_capital": float(candidates.source[:1].isupper()),
        "source_digits": _share(candidates.source, str.isdigit),
        "source_ends_in_sign": float(bool(source) and not source[-1][-1].isalnum()),
    }
    made |= _of_systems(candidates, len(source))
    for name, text, side in zip(("statistical", "neural"), texts, sides, strict=True):
        made |= {
            f"{name}_words": float(len(side)),
            f"{name}_ratio": len(side) / max(1, len(source)),
            f"{name}_language_model": language_model(side) / (len(side) + 1),
            f"{name}_marks_missing": _missing(marks(candidates.source), marks(text)),
            f"{name}_numbers_missing": float(
                len(set(_NUMBER.findall(candidates.source)) ^ set(_NUMBER.findall(text)))
            ),
            f"{name}_signs_differ": abs(
                float(len(_SIGN.findall(candidates.source)) - len(_SIGN.findall(text)))
            ),
            f"{name}_last_sign_same": float(candidates.source[-1:] == text[-1:]),
            f"{name}_copied": len(set(source) & set(side)) / max(1, len(set(side))),
            f"{name}_repeated": 1 - len(set(side)) / max(1, len(side)),
            f"{name}_capitals": _share(text, str.isupper),
            f"{name}_first_capital": float(text[:1].isupper()),
            f"{name}_longest_word": float(max(map(len, side), default=0)),
        }
    one, other = map(set, sides)
    made["agreement_words"] = len(one & other) / max(1, len(one | other))
    made["agreement_equal"] = float(texts[0] == texts[1])
    made["language_model_difference"] = (
        made["statistical_language_model"] - made["neural_language_model"]
    )
    return made


def _of_systems(candidates: Candidates, size: int) -> dict[str, float]:
    statistical, neural = candidates.statistical, candidates.neural
    per_word = {
        f"statistical_{name}": figure / max(1, size)
        for name, figure in zip(SCORES, statistical.figures, strict=True)
    }
    lengths = statistical.phrase_lengths
    own = neural.log_probability / max(1, neural.num_tokens)
    return per_word | {
        "statistical_score": statistical.score / max(1, size),
        "statistical_mean_phrase": sum(lengths) / max(1, len(lengths)),
        "statistical_longest_phrase": float(max(lengths, default=0)),
        "neural_score": own,
        "neural_tokens": float(neural.num_tokens),
        "neural_finished": float(neural.finished),
        "neural_margin": neural.margin,
        "neural_worst": neural.worst,
        "neural_of_statistical": candidates.neural_of_statistical,
        "neural_prefers": own - candidates.neural_of_statistical,
    }


def _share(text: str, is_such: Callable[[str], bool]) -> float:
    return sum(map(is_such, text)) / max(1, len(text))


def _missing(wanted: Mapping[str, int], there: Mapping[str, int]) -> float:
    return float(sum(abs(wanted.get(m, 0) - there.get(m, 0)) for m in {*wanted, *there}))
