"""The decoder's weights, tuned for BLEU by pairwise ranking (PRO).

Hopkins & May, EMNLP 2011: pairs of translations of a sentence that differ in sentence BLEU are
ranked by logistic regression on the difference of their features, round after round.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from examples.translate.decoder import FEATURES, Decoder, Hypothesis

_PAIRS_EACH = 40
_LEAST_DIFFERENCE = 0.05
_KEEP = 0.5
"""Share of the new weights in a round."""


def sentence_bleu(made: Sequence[str], wanted: Sequence[str]) -> float:
    """BLEU of one sentence, 0 to 1, one added to counts above one word (Lin & Och, 2004)."""
    if not made:
        return 0.0
    total = 0.0
    for length in range(1, 5):
        ours, theirs = (
            Counter(tuple(side[n : n + length]) for n in range(len(side) - length + 1))
            for side in (made, wanted)
        )
        added = 0 if length == 1 else 1
        hits = sum((ours & theirs).values()) + added
        if hits == 0:
            return 0.0
        total += math.log(hits / (sum(ours.values()) + added)) / 4
    return math.exp(total + min(0.0, 1 - len(wanted) / len(made)))


def tuned(
    decoder: Decoder,
    sources: Sequence[Sequence[str]],
    targets: Sequence[Sequence[str]],
    rounds: int = 4,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Decoder:
    """The decoder with the weights of the round that translated best, the first ones included."""
    generator = np.random.default_rng(seed)
    pool: list[dict[tuple[str, ...], Hypothesis]] = [{} for _ in sources]
    best, best_bleu = decoder, -1.0
    for number in range(rounds + 1):
        total = 0.0
        made_of_each = decoder.best_of_all(sources, 30)
        for own, found, target in zip(pool, made_of_each, targets, strict=True):
            total += sentence_bleu(found[0].words, target)
            own.update((hypothesis.words, hypothesis) for hypothesis in found)
        mean = total / max(1, len(sources))
        say(f"tuning: round {number}, mean sentence BLEU {100 * mean:.2f}")
        if mean > best_bleu:
            best, best_bleu = decoder, mean
        if number == rounds:
            break
        differences = _differences(pool, targets, generator)
        if not len(differences):
            break
        made = _ranked(differences)
        made *= np.abs(decoder.weights).sum() / max(np.abs(made).sum(), 1e-9)
        mixed = (1 - _KEEP) * np.array(decoder.weights) + _KEEP * made
        decoder = replace(decoder, weights=tuple(mixed.tolist()))
    return best


def _differences(
    pool: Sequence[dict[tuple[str, ...], Hypothesis]],
    targets: Sequence[Sequence[str]],
    generator: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """Features of the better minus those of the worse, for pairs that differ most."""
    rows = []
    for own, target in zip(pool, targets, strict=True):
        some = list(own.values())
        if len(some) < 2:
            continue
        bleu = np.array([sentence_bleu(one.words, target) for one in some])
        drawn = generator.integers(len(some), size=(400, 2))
        apart = bleu[drawn[:, 0]] - bleu[drawn[:, 1]]
        order = np.argsort(-np.abs(apart))[:_PAIRS_EACH]
        for one, other, far in zip(*drawn[order].T, apart[order], strict=True):
            if abs(far) >= _LEAST_DIFFERENCE:
                row = np.array(some[one].figures) - np.array(some[other].figures)
                rows.append(row if far > 0 else -row)
    return np.array(rows).reshape(-1, len(FEATURES))


def _ranked(differences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Weights that give all differences a positive score: logistic regression by gradient."""
    scale = np.maximum(differences.std(axis=0), 1e-6)
    rows, weights = differences / scale, np.zeros(len(FEATURES))
    for _ in range(300):
        wrong = 1 / (1 + np.exp(np.clip(rows @ weights, -50, 50)))
        weights += 1.0 * ((wrong[:, None] * rows).mean(axis=0) - 1e-3 * weights)
    return np.asarray(weights / scale)
