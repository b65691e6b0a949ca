"""Training a quality classifier on documents that are good and documents that are not."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import DataError, UsageError
from longhaul.data.clean.classifier import FEATURES, Classifier, Features, features_of
from longhaul.data.clean.prose import Prose
from longhaul.data.documents import Document, is_held_out, text_digest

_FEWEST = 20
"""Documents in either set."""
_MOST = 20_000
"""Documents taken of either set: those whose texts have the smallest hashes."""
_HELD_OUT = 0.2
_INVERSE_PENALTY = 10.0
"""scikit-learn's C. Rows have length 1, so that its default of 1 would hardly learn."""
_TELLING = 10
_MOST_WORDS = 50_000

_Rows: TypeAlias = list[tuple[bytes, Features]]


@dataclass(frozen=True)
class _Set:
    rows: _Rows
    """Digest and features of each document, by digest."""
    words: Counter[str]
    num_documents: int


def train_classifier(good: Iterable[Document], bad: Iterable[Document]) -> Classifier:
    """Learn to tell two sets of documents apart; a fifth of each is kept to measure how well.

    Raises:
        DataError: a set has too few documents, or both have the same.
        UsageError: scikit-learn is not installed.
    """
    sets = {"good": _collected(good), "bad": _collected(bad)}
    both = {digest for digest, _ in sets["good"].rows} & {d for d, _ in sets["bad"].rows}
    features: list[Features] = []
    labels: list[bool] = []
    held_out: list[bool] = []
    facts: dict[str, Any] = {"in both": len(both)}
    for name, found in sets.items():
        rows = [row for row in found.rows if row[0] not in both]
        if len(rows) < _FEWEST:
            raise DataError(
                f"classifier: {len(rows)} documents in the {name} set"
                + (f" ({len(both)} more are in both)" if both else ""),
                f"give it {_FEWEST} or more; hundreds make a useful one",
            )
        facts[name] = {"documents": found.num_documents, "taken": len(rows)}
        features += [row for _, row in rows]
        labels += [name == "good"] * len(rows)
        held_out += [is_held_out(digest, _HELD_OUT) for digest, _ in rows]
    is_good, is_measured = np.array(labels), np.array(held_out)
    weights, bias = _fitted(features, is_good, is_measured)
    scores = np.array([float(weights[at] @ values) + bias for at, values in features])
    facts |= _measured(scores[is_measured], is_good[is_measured])
    facts["telling"] = _telling(weights, sets)
    return Classifier(weights, bias, facts)


def _collected(documents: Iterable[Document]) -> _Set:
    rows: dict[bytes, Features] = {}
    words: Counter[str] = Counter()
    count = 0
    for document in documents:
        count += 1
        prose = Prose(document.text)
        rows.setdefault(text_digest(document.text.encode()), features_of(prose))
        if len(words) < _MOST_WORDS:
            words.update(word.lower() for word in prose.vocabulary)
        if len(rows) >= 2 * _MOST:
            rows = dict(sorted(rows.items())[:_MOST])
    return _Set(sorted(rows.items())[:_MOST], words, count)


def _fitted(
    features: list[Features], is_good: npt.NDArray[np.bool_], is_measured: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float32], float]:
    """Weights and bias, from the documents that are not kept to measure."""
    try:
        from scipy.sparse import csr_matrix
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise UsageError(
            f"training a classifier needs scikit-learn ({error})", "pip install 'longhaul[corpus]'"
        ) from error
    taken = [row for row, measured in zip(features, is_measured, strict=True) if not measured]
    begins = np.concatenate([[0], np.cumsum([len(at) for at, _ in taken])])
    matrix = csr_matrix(
        (
            np.concatenate([values for _, values in taken]),
            np.concatenate([at for at, _ in taken]),
            begins,
        ),
        shape=(len(taken), FEATURES),
    )
    model = LogisticRegression(C=_INVERSE_PENALTY, class_weight="balanced", max_iter=1000)
    model.fit(matrix, is_good[~is_measured])
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def _measured(
    scores: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]
) -> dict[str, float | None]:
    """How well the two sets are told apart; None where none of one was kept to measure."""
    good, bad = scores[is_good], scores[~is_good]
    if not len(good) or not len(bad):
        return {"good kept": None, "bad left out": None, "area": None}
    better = (good[:, None] > bad).mean() + 0.5 * (good[:, None] == bad).mean()
    return {
        "good kept": float((good >= 0).mean()),
        "bad left out": float((bad < 0).mean()),
        # Of a good and a bad document, how often the good one has the higher score.
        "area": float(better),
    }


def _telling(weights: npt.NDArray[np.float32], sets: dict[str, _Set]) -> dict[str, list[str]]:
    """Frequent words with the largest weights, so that a person sees what was learned."""
    documents = sets["good"].words + sets["bad"].words
    frequent = [word for word, times in documents.most_common(5_000) if times >= 3]
    weighed = []
    for word in frequent:
        at, values = features_of(Prose(word))
        if len(at) == 1 and word.isalpha():
            weighed.append((float(weights[at] @ values), word))
    weighed.sort()
    return {
        "good": [word for weight, word in weighed[::-1][:_TELLING] if weight > 0],
        "bad": [word for weight, word in weighed[:_TELLING] if weight < 0],
    }
