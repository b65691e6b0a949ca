"""The language model of the target: n-grams with modified Kneser-Ney smoothing, interpolated.

Chen & Goodman, 1999 (Computer Speech and Language 13), equations 21 to 26. Our own, because the
`kenlm` that pip installs asks models and makes none: its `lmplz` is built with cmake and boost.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

BEGIN, END, UNKNOWN = "<s>", "</s>", "<unk>"
Context = tuple[str, ...]


class LanguageModel:
    """Probabilities of the next word given up to `order` - 1 words before it."""

    def __init__(self, sentences: Iterable[Sequence[str]], order: int = 4) -> None:
        self.order = order
        counts: list[Counter[Context]] = [Counter() for _ in range(order)]
        for sentence in sentences:
            words = (BEGIN, *sentence, END)
            for end in range(2, len(words) + 1):
                for length in range(1, min(order, end) + 1):
                    counts[length - 1][words[end - length : end]] += 1
        self._adjust(counts)
        self._levels = [_Level(level) for level in counts]
        self._words = len(counts[0]) + 1  # with the unknown one
        self._known: dict[tuple[Context, str], float] = {}

    def _adjust(self, counts: list[Counter[Context]]) -> None:
        """Lower orders count the different words before, but where a sentence begins."""
        for level in range(self.order - 1):
            different: Counter[Context] = Counter()
            for ngram in counts[level + 1]:
                different[ngram[1:]] += 1
            for ngram in counts[level]:
                if ngram[0] != BEGIN:
                    counts[level][ngram] = different[ngram]

    def log_probability(self, context: Context, word: str) -> float:
        """Natural logarithm of p(word | context); of the context the last words are read."""
        context = context[-(self.order - 1) :] if self.order > 1 else ()
        asked = context, word
        found = self._known.get(asked)
        if found is None:
            if len(self._known) > 2_000_000:
                self._known.clear()
            found = self._known[asked] = math.log(self._probability(context, word))
        return found

    def _probability(self, context: Context, word: str) -> float:
        probability = 1.0 / self._words
        for length in range(len(context) + 1):
            level = self._levels[length]
            given = context[len(context) - length :]
            total = level.totals.get(given)
            if total is None:
                break
            count = level.counts.get((*given, word), 0)
            probability = (
                max(count - level.discount(count), 0.0) / total
                + level.left_over[given] * probability
            )
        return probability

    def score(self, sentence: Sequence[str]) -> float:
        """Natural logarithm of a sentence's probability, with its end."""
        words, total = (BEGIN, *sentence, END), 0.0
        for place in range(1, len(words)):
            total += self.log_probability(words[:place], words[place])
        return total


class _Level:
    """N-grams of one length, their contexts' totals, and what the discounts leave over."""

    def __init__(self, counts: Counter[Context]) -> None:
        self.counts = dict(counts)
        of_counts = Counter(counts.values())
        one, two, three, four = (max(of_counts[n], 1) for n in (1, 2, 3, 4))
        share = one / (one + 2 * two)
        ratios = two / one, three / two, four / three
        made = [n - (n + 1) * share * ratio for n, ratio in enumerate(ratios, 1)]
        # Of few n-grams the formula leaves its range.
        self._discounts = (0.0, *(min(max(d, 0.1), n - 0.1) for n, d in enumerate(made, 1)))
        self.totals: dict[Context, int] = defaultdict(int)
        taken: dict[Context, float] = defaultdict(float)
        for ngram, count in counts.items():
            self.totals[ngram[:-1]] += count
            taken[ngram[:-1]] += self.discount(count)
        self.totals = dict(self.totals)
        self.left_over = {given: taken[given] / total for given, total in self.totals.items()}

    def discount(self, count: int) -> float:
        return self._discounts[min(count, 3)]
