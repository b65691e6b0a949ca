"""How good translations are: BLEU and chrF++ of sacrebleu, with intervals and a paired test."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from examples.translate.text import marks


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one system over a set."""

    bleu: float
    bleu_interval: tuple[float, float]
    """95 % of bootstrap samples lie between these."""
    chrf: float
    chrf_interval: tuple[float, float]
    bleu_samples: tuple[float, ...]
    chrf_samples: tuple[float, ...]
    signatures: tuple[str, str]


def quality(
    made: Sequence[str], wanted: Sequence[str], samples: int = 500, seed: int = 12345
) -> Quality:
    """BLEU and chrF++ with bootstrap samples (Koehn, EMNLP 2004); equal seeds draw equal sets, so
    that two systems' samples are paired.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metrics = BLEU(), CHRF(word_order=2)
    values, drawn_values = [], []
    for metric in metrics:
        full = metric.corpus_score(list(made), [list(wanted)])
        statistics = np.array(metric._extract_corpus_statistics(list(made), [list(wanted)]))
        generator = np.random.default_rng(seed)
        drawn = generator.integers(len(made), size=(samples, len(made)))
        scores = [
            metric._compute_score_from_stats(statistics[rows].sum(axis=0).tolist()).score
            for rows in drawn
        ]
        values.append(full.score)
        drawn_values.append(tuple(map(float, scores)))
    (bleu_low, bleu_high), (chrf_low, chrf_high) = (
        map(float, np.percentile(some, (2.5, 97.5))) for some in drawn_values
    )
    return Quality(
        bleu=values[0],
        bleu_interval=(bleu_low, bleu_high),
        chrf=values[1],
        chrf_interval=(chrf_low, chrf_high),
        bleu_samples=drawn_values[0],
        chrf_samples=drawn_values[1],
        signatures=(str(metrics[0].get_signature()), str(metrics[1].get_signature())),
    )


def p_value(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Share of paired bootstrap samples in which ours is not above theirs, one added to both."""
    return (sum(a <= b for a, b in zip(ours, theirs, strict=True)) + 1) / (len(ours) + 1)


def sentence_scores(made: Sequence[str], wanted: Sequence[str]) -> list[float]:
    """chrF++ of each sentence, 0 to 100."""
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF(word_order=2, eps_smoothing=True)
    return [metric.sentence_score(a, [b]).score for a, b in zip(made, wanted, strict=True)]


def survival(sources: Sequence[str], made: Sequence[str]) -> tuple[int, int]:
    """Masked sentences with placeholders, and those of them whose translation has the same ones."""
    held = [(a, b) for a, b in zip(sources, made, strict=True) if marks(a)]
    return len(held), sum(marks(a) == marks(b) for a, b in held)


def by_group(
    names: Sequence[str],
    statistical: Sequence[float],
    neural: Sequence[float],
    hybrid: Sequence[float],
) -> list[tuple[str, int, float, float, float]]:
    """Of each group of sentences: name, number, mean chrF++ of the three."""
    rows = []
    for name in sorted(set(names)):
        inside = np.array([one == name for one in names])
        means = [float(np.array(s)[inside].mean()) for s in (statistical, neural, hybrid)]
        rows.append((name, int(inside.sum()), means[0], means[1], means[2]))
    return rows
