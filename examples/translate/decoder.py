"""The statistical translator: a stack decoder over phrases, log-linear in nine features.

Koehn, Statistical Machine Translation (2010), chapter 6: hypotheses by the number of words covered,
those that no later choice can tell apart recombined, each stack cut to a beam by score and estimate
of what is left.
"""

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from examples.translate.ngram import BEGIN, END, Context, LanguageModel
from examples.translate.phrases import LONGEST, Option, PhraseTable

FEATURES = (
    "target_given_source",
    "lexical_target",
    "source_given_target",
    "lexical_source",
    "language_model",
    "words",
    "phrases",
    "distortion",
    "unknown",
)
"""Natural logarithms of probabilities, but for the counts of words, phrases and unknown words, and
the distance in words that the order of phrases leaps over, which is negative."""
FIRST_WEIGHTS = (0.2, 0.2, 0.2, 0.2, 0.5, 0.3, 0.1, 0.3, -1.0)
Figures = tuple[float, ...]
_LEAST_EACH = 16
"""Sources for which a process is worth its start."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A translation, what it scores, and how it was made."""

    words: tuple[str, ...]
    score: float
    figures: Figures
    """One for each of `FEATURES`."""
    phrase_lengths: tuple[int, ...]
    """Source words of each phrase, in the order of the target."""


@dataclass(slots=True)
class _Partial:
    covered: int
    context: Context
    end: int
    score: float
    estimate: float
    figures: Figures
    before: "_Partial | None"
    option: Option | None
    length: int = 0


@dataclass
class Decoder:
    """Translates sentences of words."""

    table: PhraseTable
    language_model: LanguageModel
    weights: Figures = FIRST_WEIGHTS
    beam: int = 16
    """Hypotheses of a stack."""
    reordering: int = 4
    """Most words between a phrase and the first word that is not yet translated."""
    options_each: int = 8
    """Translations tried of a source phrase."""
    _phrase_scores: dict[tuple[str, ...], float] = field(default_factory=dict, repr=False)

    def translate(self, source: Sequence[str]) -> Hypothesis:
        """The best translation found."""
        return self.best(source, 1)[0]

    def best_of_all(self, sources: Sequence[Sequence[str]], most: int) -> list[list[Hypothesis]]:
        """`best` of each; of many sources, on Linux, with a process for each core."""
        affinity = getattr(os, "sched_getaffinity", None)
        cores = len(affinity(0)) if affinity is not None else 1
        workers = min(cores, len(sources) // _LEAST_EACH)
        if workers < 2:
            return [self.best(source, most) for source in sources]
        global _forked
        _forked = self
        try:
            with multiprocessing.get_context("fork").Pool(workers) as pool:
                asked = [(source, most) for source in sources]
                return pool.starmap(_best_of_forked, asked, chunksize=8)
        finally:
            _forked = None

    def best(self, source: Sequence[str], most: int) -> list[Hypothesis]:
        """The best translations found, different in their words, best first."""
        if not source:
            return [Hypothesis((), 0.0, (0.0,) * len(FEATURES), ())]
        spans = self._spans(source)
        left = self._left(spans, len(source))
        stacks: list[dict[tuple[int, Context, int], _Partial]] = [
            {} for _ in range(len(source) + 1)
        ]
        first = _Partial(0, (BEGIN,), 0, 0.0, 0.0, (0.0,) * len(FEATURES), None, None)
        stacks[0][0, first.context, 0] = first
        for number, stack in enumerate(stacks[:-1]):
            kept = sorted(stack.values(), key=lambda p: -(p.score + p.estimate))[: self.beam]
            for partial in kept:
                self._extend(partial, spans, left, len(source), stacks, number)
        found: dict[tuple[str, ...], Hypothesis] = {}
        for partial in sorted(stacks[-1].values(), key=lambda p: -p.score):
            made = _told(partial)
            found.setdefault(made.words, made)
        return list(found.values())[:most]

    def _extend(
        self,
        partial: _Partial,
        spans: dict[tuple[int, int], list[Option]],
        left: list[list[float]],
        size: int,
        stacks: list[dict[tuple[int, Context, int], _Partial]],
        number: int,
    ) -> None:
        gap = 0
        while partial.covered >> gap & 1:
            gap += 1
        for begin in range(gap, min(size, gap + self.reordering + 1)):
            if begin > gap and self.reordering == 0:
                break
            for end in range(begin + 1, min(begin + LONGEST, size) + 1):
                mask = (1 << end) - (1 << begin)
                if partial.covered & mask:
                    break
                options = spans.get((begin, end))
                if not options:
                    continue
                estimate = self._estimate(partial.covered | mask, left, size)
                stack = stacks[number + end - begin]
                for option in options:
                    made = self._made(partial, option, begin, end, size, estimate, mask)
                    state = made.covered, made.context, made.end
                    known = stack.get(state)
                    if known is None or known.score < made.score:
                        stack[state] = made

    def _made(
        self,
        partial: _Partial,
        option: Option,
        begin: int,
        end: int,
        size: int,
        estimate: float,
        mask: int,
    ) -> _Partial:
        context, model = partial.context, 0.0
        for word in option.words:
            model += self.language_model.log_probability(context, word)
            context = (*context, word)[-(self.language_model.order - 1) :]
        covered = partial.covered | mask
        if covered == (1 << size) - 1:
            model += self.language_model.log_probability(context, END)
        unknown = 1.0 if option.count == 0 else 0.0
        leap = -float(abs(begin - partial.end))
        more = (*option.scores, model, float(len(option.words)), 1.0, leap, unknown)
        figures = tuple(a + b for a, b in zip(partial.figures, more, strict=True))
        score = partial.score + sum(w * f for w, f in zip(self.weights, more, strict=True))
        return _Partial(
            covered, context, end, score, estimate, figures, partial, option, end - begin
        )

    def _spans(self, source: Sequence[str]) -> dict[tuple[int, int], list[Option]]:
        spans: dict[tuple[int, int], list[Option]] = {}
        for begin in range(len(source)):
            for end in range(begin + 1, min(begin + LONGEST, len(source)) + 1):
                options = self.table.options.get(tuple(source[begin:end]))
                if options:
                    ranked = sorted(options, key=lambda o: -self._alone(o))
                    spans[begin, end] = ranked[: self.options_each]
            if (begin, begin + 1) not in spans:  # an unknown word passes through
                spans[begin, begin + 1] = [Option((source[begin],), (0.0, 0.0, 0.0, 0.0), 0)]
        return spans

    def _alone(self, option: Option) -> float:
        """Score of a phrase without its neighbours."""
        model = self._phrase_scores.get(option.words)
        if model is None:
            model = 0.0
            for place, word in enumerate(option.words):
                model += self.language_model.log_probability(option.words[:place], word)
            self._phrase_scores[option.words] = model
        unknown = 1.0 if option.count == 0 else 0.0
        figures = (*option.scores, model, float(len(option.words)), 1.0, 0.0, unknown)
        return sum(w * f for w, f in zip(self.weights, figures, strict=True))

    def _left(self, spans: dict[tuple[int, int], list[Option]], size: int) -> list[list[float]]:
        """Best score of each span [begin][end], its phrases without their neighbours."""
        best = [[float("-inf")] * (size + 1) for _ in range(size + 1)]
        for length in range(1, size + 1):
            for begin in range(size - length + 1):
                end = begin + length
                options = spans.get((begin, end))
                value = max(map(self._alone, options)) if options else float("-inf")
                for middle in range(begin + 1, end):
                    value = max(value, best[begin][middle] + best[middle][end])
                best[begin][end] = value
        return best

    @staticmethod
    def _estimate(covered: int, left: list[list[float]], size: int) -> float:
        total, begin = 0.0, None
        for place in range(size + 1):
            free = place < size and not covered >> place & 1
            if free and begin is None:
                begin = place
            elif not free and begin is not None:
                total += left[begin][place]
                begin = None
        return total


_forked: Decoder | None = None
"""What worker processes find in the memory that they have been forked with: a table of a million
phrases takes seconds to send.
"""


def _best_of_forked(source: Sequence[str], most: int) -> list[Hypothesis]:
    assert _forked is not None
    return _forked.best(source, most)


def _told(partial: _Partial) -> Hypothesis:
    phrases: list[Option] = []
    lengths: list[int] = []
    here: _Partial | None = partial
    while here is not None and here.option is not None:
        phrases.append(here.option)
        lengths.append(here.length)
        here = here.before
    words = tuple(word for option in reversed(phrases) for word in option.words)
    return Hypothesis(words, partial.score, partial.figures, tuple(reversed(lengths)))
