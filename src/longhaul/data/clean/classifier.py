"""A quality classifier: logistic regression over hashed words and pairs of words.

GPT-3 (Brown et al. 2020, appendix A) and YaLM kept pages that such a classifier took for good
ones, trained on chosen documents against ordinary pages. Hashing is our own, for scikit-learn's
`HashingVectorizer` takes words one by one in Python and would bring scikit-learn into each worker;
only training needs it. A classifier on disk is safetensors: numbers and JSON, no pickle.
"""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from longhaul.core.errors import RecipeError
from longhaul.core.files import write_bytes
from longhaul.data.clean.prose import Prose

FEATURES = 1 << 18
"""Weights of a classifier, 1 MiB of them."""
_FORMAT = 1
_STRIPPED = ".,;:!?\"'()[]{}<>«»“”‘’…*_-–—"
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(64 - FEATURES.bit_length() + 1)

Features: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Which of the `FEATURES` a text has, ascending, and how much of each, both shaped (present,)."""


def features_of(prose: Prose) -> Features:
    """Words and pairs of words by their hash, 1 + ln(count) each, scaled to length 1."""
    bare = (word.lower().strip(_STRIPPED).encode() for word in prose.vocabulary)
    hashes = np.fromiter(map(zlib.crc32, bare), np.uint64, len(prose.vocabulary))
    words = (hashes[prose.numbers] + np.uint64(1)) * _ODD
    words ^= words >> np.uint64(29)
    pairs = (words[:-1] * np.uint64(3) + words[1:]) * _ODD
    hashed = (np.concatenate([words * _ODD, pairs]) >> _SHIFT).astype(np.int64)
    present, counts = np.unique(hashed, return_counts=True)
    values = 1 + np.log(counts)
    length = float(np.sqrt((values * values).sum())) or 1.0
    return present, (values / length).astype(np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class Classifier:
    """What was learned."""

    weights: npt.NDArray[np.float32]
    """Shape (FEATURES,)."""
    bias: float
    facts: dict[str, Any]
    """How it was made and how well it told the two sets apart, as JSON."""

    def probability(self, prose: Prose) -> float:
        """Of being one of the good documents (0 to 1)."""
        present, values = features_of(prose)
        score = float(self.weights[present] @ values) + self.bias
        return float(1 / (1 + np.exp(-np.clip(score, -50, 50))))

    def save(self, path: Path) -> None:
        """Write it as safetensors, whole or not at all."""
        from safetensors.numpy import save

        facts = {"format": _FORMAT, "bias": self.bias, **self.facts}
        metadata = {"longhaul_classifier": json.dumps(facts, sort_keys=True)}
        write_bytes(path, save({"weights": self.weights}, metadata))


def load_classifier(path: Path) -> Classifier:
    """What `save` wrote. RecipeError if it is no classifier of ours."""
    from safetensors import SafetensorError, safe_open

    way = "make one with `longhaul data classifier GOOD BAD -o FILE`"
    setting = "data.filters.classifier"
    if not path.is_file():
        raise RecipeError(f"{setting}: {path}: no such file", way)
    try:
        with safe_open(str(path), framework="numpy") as file:
            facts = json.loads((file.metadata() or {})["longhaul_classifier"])
            weights = file.get_tensor("weights")
            bias = float(facts.pop("bias"))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        raise RecipeError(f"{setting}: {path} is no classifier ({error})", way) from error
    if facts.pop("format", None) != _FORMAT or weights.shape != (FEATURES,):
        raise RecipeError(f"{setting}: {path} was made by another version of longhaul", way)
    return Classifier(weights, bias, facts)


@dataclass(frozen=True, slots=True)
class Quality:
    """Leaves out a text that a classifier does not take for good."""

    classifier: Classifier
    least: float

    def reason(self, prose: Prose) -> str | None:
        """Why a text goes; None if it stays."""
        good = self.classifier.probability(prose) >= self.least
        return None if good else f"classifier < {self.least:g}"
