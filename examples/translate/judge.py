"""The judge: CatBoost says, sentence by sentence, how probably the neural translation is better.

It is trained on the difference of sentence chrF++ against references that it never sees; a pair
weighs as much as its difference. The probability at which it changes over is chosen on sentences
that it was not trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longhaul import UsageError

Floats = npt.NDArray[np.float64]
_FOLDS = 4


def _catboost() -> Any:
    try:
        import catboost
    except ImportError:
        raise UsageError(
            "the judge needs catboost, which is not installed", "pip install 'longhaul[translate]'"
        ) from None
    return catboost


@dataclass(frozen=True)
class Judge:
    """A trained judge."""

    model: Any
    names: tuple[str, ...]
    threshold: float
    """Probability from which on the neural translation is shown."""

    def probability(self, rows: Sequence[dict[str, float]]) -> Floats:
        """That the neural translation is the better one, for each sentence."""
        if not rows:
            return np.empty(0)
        return np.asarray(self.model.predict_proba(_table(rows, self.names))[:, 1])

    def reasons(self, row: dict[str, float], most: int = 4) -> list[tuple[str, float, float]]:
        """Features that moved the choice most: name, value, SHAP value in log-odds (> 0: neural).

        Lundberg & Lee, NeurIPS 2017, as CatBoost computes them.
        """
        pool = _catboost().Pool(_table([row], self.names))
        moved = self.model.get_feature_importance(pool, type="ShapValues")[0][:-1]
        order = np.argsort(-np.abs(moved))[:most]
        return [(self.names[n], row[self.names[n]], float(moved[n])) for n in order]

    def importances(self) -> list[tuple[str, float]]:
        """Share of each feature in the changes of the prediction, in percent, largest first."""
        shares = zip(self.names, map(float, self.model.get_feature_importance()), strict=True)
        return sorted(shares, key=lambda one: -one[1])

    def save(self, path: Path) -> None:
        """CatBoost's own format, the threshold in its metadata."""
        self.model.get_metadata()["threshold"] = repr(self.threshold)
        self.model.save_model(str(path))


def load(path: Path) -> Judge:
    """A judge that was saved. UsageError without catboost."""
    model = _catboost().CatBoostClassifier()
    model.load_model(str(path))
    return Judge(model, tuple(model.feature_names_), float(model.get_metadata()["threshold"]))


def _table(rows: Sequence[dict[str, float]], names: Sequence[str]) -> Floats:
    return np.array([[row[name] for name in names] for row in rows], dtype=np.float64)


def train(
    rows: Sequence[dict[str, float]],
    statistical: Sequence[float],
    neural: Sequence[float],
    seed: int = 0,
) -> Judge:
    """A judge of these sentences, given each system's chrF++ (0 to 100) against the reference.

    UsageError without catboost, or if one system is never the better one.
    """
    difference = np.array(neural) - np.array(statistical)
    better, apart = difference > 0, np.abs(difference) > 0
    if len(set(better[apart].tolist())) < 2:
        raise UsageError(
            f"of {int(apart.sum())} sentences one system is better in all: nothing to learn",
            "give more validation sentences, or train the weaker system longer",
        )
    names = tuple(rows[0])
    table = _table(rows, names)
    fold = np.random.default_rng(seed).integers(_FOLDS, size=len(rows))
    probability = np.full(len(rows), 0.5)
    for number in range(_FOLDS):
        used = (fold != number) & apart
        if len(set(better[used].tolist())) == 2:
            model = _fitted(table[used], better[used], np.abs(difference[used]), names, seed)
            probability[fold == number] = model.predict_proba(table[fold == number])[:, 1]
    model = _fitted(table[apart], better[apart], np.abs(difference[apart]), names, seed)
    return Judge(model, names, best_threshold(probability, statistical, neural))


def _fitted(table: Floats, better: Any, weight: Floats, names: Sequence[str], seed: int) -> Any:
    catboost = _catboost()
    model = catboost.CatBoostClassifier(
        iterations=250, depth=4, learning_rate=0.05, l2_leaf_reg=8, random_seed=seed,
        thread_count=2, verbose=False, allow_writing_files=False,
    )  # fmt: skip
    model.fit(catboost.Pool(table, better, weight=weight, feature_names=list(names)))
    return model


def best_threshold(
    probability: Floats, statistical: Sequence[float], neural: Sequence[float]
) -> float:
    """The probability from which on taking the neural translation gives the highest mean score.

    Of equal ones the nearest to a half.
    """
    levels = np.round(np.linspace(0.05, 1.0, 20), 2)
    means = [float(np.where(probability >= level, neural, statistical).mean()) for level in levels]
    near = sorted(range(len(levels)), key=lambda n: (-round(means[n], 9), abs(levels[n] - 0.5)))
    return float(levels[near[0]])


def calibration(
    probability: Floats, statistical: Sequence[float], neural: Sequence[float], bins: int = 5
) -> list[tuple[float, float, int]]:
    """Mean probability, share in which the neural one is better, and number, for each bin.

    Sentences that both translate equally well are left out.
    """
    difference = np.array(neural) - np.array(statistical)
    kept = difference != 0
    rows = []
    for low in np.arange(bins) / bins:
        inside = kept & (probability >= low) & (probability < low + 1 / bins + 1e-12 * (low > 0.7))
        if inside.any():
            share = float((difference[inside] > 0).mean())
            rows.append((float(probability[inside].mean()), share, int(inside.sum())))
    return rows
