"""MinHash signatures of documents, their bands, and the sets of shingles that they estimate.

A shingle is five words in a row, of lower-case text cut at white space (Lee et al., arXiv
2107.06499, appendix A); in scripts that write no spaces each character is a word. The share of
equal values in two signatures of 128 estimates the Jaccard similarity of the two sets (Broder,
1997), with a standard error of at most 0.044.
"""

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from longhaul.data.corpus.dedup.buckets import Records

HASHES = 128
WORDS = 5
_SEED = 1
_RECALL_AT_THRESHOLD = 0.94
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_PIECE_BYTES = 4 << 20
_LONGEST_WORD = 1 << 12

# Thai to Lao, Tibetan and Burmese, Khmer, kana, Chinese characters, all with their extensions. Set
# apart, as a whole paragraph would be one word.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)

Signatures = npt.NDArray[np.uint32]
"""Shape (documents, 128)."""
Shingles = npt.NDArray[np.uint64]
"""Hashes, sorted, each once."""


def plain(text: str) -> str:
    """What is compared of a text: neither case nor white space."""
    return " ".join(text.lower().split())


def in_words(text: str) -> str:
    """The same with a space between words, also of scripts that write none."""
    return plain(text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text))


def signatures(texts: Sequence[str]) -> Signatures:
    """Of texts `in_words`."""
    import daft
    import pyarrow as pa

    series = daft.Series.from_arrow(pa.array(texts, pa.large_string()))
    values = series.minhash(HASHES, WORDS, _SEED, "xxhash").to_arrow()
    return np.asarray(values.flatten()).reshape(-1, HASHES).astype(np.uint32)


def rows_for(threshold: float) -> int:
    """Values of a band: as many as find 94 % of the pairs that are just as similar as this."""
    fitting = [r for r in range(1, HASHES + 1) if found(threshold, r) >= _RECALL_AT_THRESHOLD]
    return max(fitting, default=1)


def found(similarity: float, rows: int) -> float:
    """Probability that a pair of this similarity has a band in common: 1 - (1 - sʳ)ᵇ."""
    return float(1 - (1 - similarity**rows) ** (HASHES // rows))


def band_keys(values: Signatures, documents: npt.NDArray[np.uint64], rows: int) -> Records:
    """A record for each band of each document: a 64-bit key, and the document's number."""
    bands = HASHES // rows
    keys = np.empty((bands, len(values)), np.uint64)
    with np.errstate(over="ignore"):
        for band in range(bands):
            key = np.full(len(values), band + 1, np.uint64) * _MULTIPLIER
            for column in range(band * rows, (band + 1) * rows):
                key = mixed(key ^ values[:, column].astype(np.uint64))
            keys[band] = key
    return np.stack([keys.ravel(), np.tile(documents, bands)], axis=1)


def mixed(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser."""
    with np.errstate(over="ignore"):
        value = (value + _MULTIPLIER).astype(np.uint64)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


_WEIGHTS = mixed(np.arange(_LONGEST_WORD, dtype=np.uint64)) | np.uint64(1)


def shingles(text: str) -> Shingles:
    """The set of a text `in_words`."""
    words = np.concatenate([_word_hashes(piece) for piece in _pieces(text.encode())])
    count = max(1, len(words) - WORDS + 1)
    width = min(WORDS, len(words))
    value = np.full(count, width, np.uint64)
    with np.errstate(over="ignore"):
        for place in range(width):
            value = value * _MULTIPLIER + words[place : place + count]
    return np.unique(mixed(value))


def _pieces(content: bytes) -> list[bytes]:
    """Cut at spaces, so that memory does not follow the longest document."""
    pieces, begin = [], 0
    while len(content) - begin > _PIECE_BYTES:
        end = content.find(b" ", begin + _PIECE_BYTES)
        if end < 0:
            break
        pieces.append(content[begin:end])
        begin = end + 1
    return [*pieces, content[begin:]]


def _word_hashes(content: bytes) -> npt.NDArray[np.uint64]:
    values = np.frombuffer(content, np.uint8).astype(np.uint64)
    if not len(values):
        return np.zeros(1, np.uint64)
    begins = np.concatenate([[0], np.flatnonzero(values == 32) + 1])
    lengths = np.diff(np.append(begins, len(values) + 1))
    places = np.arange(len(values) + 1) - np.repeat(begins, lengths)
    with np.errstate(over="ignore"):
        weighted = np.append(values, np.uint64(32)) * _WEIGHTS[places % _LONGEST_WORD]
        return mixed(np.add.reduceat(weighted, begins) + lengths.astype(np.uint64))


def jaccard(one: Shingles, other: Shingles) -> float:
    """Similarity of two sets (0 to 1)."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / max(1, len(one) + len(other) - common)
