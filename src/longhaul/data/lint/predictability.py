"""How well a small n-gram model predicts a text: bits a byte, of a model that saw other text.

The model interpolates the counts of bytes after their last 0 to 5 bytes, each order with the one
below as its prior (absolute strength; MacKay and Peto 1995, "A hierarchical Dirichlet language
model"). It learns in a second what takes a language model a minute, and tells gibberish from text
and copies from text of the same kind.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

_ORDERS = 6
_STRENGTH = (256.0, 8.0, 4.0, 2.0, 1.0, 0.5)
"""Counts that the order below is worth. The longer a context, the surer is what followed it."""
_BITS = (10, 17, 20, 21, 21, 21)
"""Of each order's table. A sample has about a million bytes: larger tables cost memory and time."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

_Bytes = npt.NDArray[np.uint8]


def _contexts(content: _Bytes) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """For each order, where each byte's context and the byte in it are counted."""
    value = np.full(len(content), 1, np.uint64)
    wide = content.astype(np.uint64)
    places = []
    with np.errstate(over="ignore"):
        for order in range(_ORDERS):
            if order:
                before = np.zeros(len(content), np.uint64)
                before[order:] = wide[:-order]
                value = (value + before + np.uint64(1)) * _MULTIPLIER
            pair = (value + (wide + np.uint64(1)) * np.uint64(0xD6E8FEB86659FD93)) * _MULTIPLIER
            context = value * _MULTIPLIER
            shift = np.uint64(64 - _BITS[order])
            context >>= shift
            pair >>= shift
            places.append((context.view(np.int64), pair.view(np.int64)))
    return places


class NgramModel:
    """Counts of what it was shown."""

    def __init__(self, texts: Sequence[str]) -> None:
        content = np.frombuffer("\n".join(texts).encode(), np.uint8)
        self._counts = [
            (
                np.bincount(context, minlength=1 << bits).astype(np.float32),
                np.bincount(pair, minlength=1 << bits).astype(np.float32),
            )
            for bits, (context, pair) in zip(_BITS, _contexts(content), strict=True)
        ]

    def bits(self, texts: Sequence[str]) -> list[float]:
        """Bits a byte of each text."""
        encoded = [text.encode() for text in texts]
        if not any(encoded):
            return [0.0] * len(texts)
        content = np.frombuffer(b"".join(encoded), np.uint8)
        chance = np.full(len(content), 1 / 256, np.float32)
        for (contexts, pairs), strength, (context, pair) in zip(
            self._counts, _STRENGTH, _contexts(content), strict=True
        ):
            # Different pairs may share a place; a count beyond its context's is one.
            seen = contexts[context]
            chance = (np.minimum(pairs[pair], seen) + strength * chance) / (seen + strength)
        cost = np.concatenate([[0.0], np.cumsum(-np.log2(chance), dtype=np.float64)])
        ends = np.cumsum([0, *map(len, encoded)])
        return [
            float(cost[end] - cost[begin]) / max(1, end - begin) for begin, end in pairwise(ends)
        ]


def own_bits(texts: Sequence[str]) -> list[float]:
    """Bits a byte of each text, by a model of the half of them that it is not in."""
    middle = len(texts) // 2
    first, second = texts[:middle], texts[middle:]
    return NgramModel(second).bits(first) + NgramModel(first).bits(second)
