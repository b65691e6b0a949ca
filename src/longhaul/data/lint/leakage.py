"""Split leakage: documents held out of which nearly the same text is trained on.

The split goes by a hash of the text, so equal texts are on one side; one more space, another case
or a repaired typo may bring a text to the other side. Letters and digits alone are compared, by
MinHash (Broder 1997) of all runs of 24 of them. Of very many documents a fair sample is kept.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longhaul.core.units import Bytes
from longhaul.data.documents import is_held_out

_RUN = 24
_HASHES = 4
_EQUAL = 3
"""Of four hashes: found at a Jaccard similarity of 0.8 in seven of ten cases, at 0.5 in one of
six."""
_MOST_DOCUMENTS = 200_000
_MOST_BYTES: Bytes = 1 << 16
"""Of a document; texts that differ further on are near-same all the same."""
_BATCH_BYTES: Bytes = 1 << 20
_LOWER = bytes(b + 32 if 65 <= b <= 90 else b for b in range(256))
_NEITHER = bytes(b for b in range(128) if not chr(b).isalnum())
_MULTIPLIER = 0x9E3779B97F4A7C15
_SALTS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F)
_U64 = np.uint64


@dataclass(frozen=True, slots=True)
class Leak:
    """A held-out document and what nearly equals it."""

    held_out: str
    trained_on: str


@dataclass(frozen=True, slots=True)
class _Known:
    source: str
    name: str
    held_out: bool

    @property
    def shown(self) -> str:
        own = self.name.startswith(self.source)
        return self.name if own else f"{self.source}: {self.name}"


class SplitLeakage:
    """Documents of all sources of a recipe, by the side they fall on."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction
        self._waiting: list[tuple[_Known, bytes]] = []
        self._waiting_bytes: Bytes = 0
        self._known: list[_Known] = []
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._mask = _U64(0)

    def see(self, source: str, name: str, content: bytes, digest: bytes) -> None:
        """One more document, its UTF-8 bytes and their digest."""
        letters = content[: 2 * _MOST_BYTES].translate(_LOWER, _NEITHER)[:_MOST_BYTES]
        if len(letters) < _RUN:
            return
        known = _Known(source, name, is_held_out(digest, self._fraction))
        self._waiting.append((known, letters))
        self._waiting_bytes += len(letters)
        if self._waiting_bytes >= _BATCH_BYTES:
            self._take()

    def _take(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        for (known, _), row in zip(waiting, _minima([text for _, text in waiting]), strict=True):
            if (row[0] & self._mask) == 0:
                self._known.append(known)
                self._hashes.append(row)
        while len(self._known) > _MOST_DOCUMENTS:
            # Near-equal documents mostly share their first hash, and so stay or go together.
            self._mask = (self._mask << _U64(1)) | _U64(1)
            kept = [(row[0] & self._mask) == 0 for row in self._hashes]
            self._known = [one for one, stays in zip(self._known, kept, strict=True) if stays]
            self._hashes = [one for one, stays in zip(self._hashes, kept, strict=True) if stays]

    def leaks(self, sources: frozenset[str]) -> tuple[int, list[Leak]]:
        """How many documents of these sources are held out, and those of them that leak."""
        self._take()
        trained: dict[int, list[int]] = {}
        held_out = []
        for number, known in enumerate(self._known):
            if known.held_out and known.source in sources:
                held_out.append(number)
            else:
                trained.setdefault(int(self._hashes[number][0]), []).append(number)
        found = []
        for number in held_out:
            for other in trained.get(int(self._hashes[number][0]), ())[:100]:
                if np.count_nonzero(self._hashes[number] == self._hashes[other]) >= _EQUAL:
                    one, two = self._known[number], self._known[other]
                    found.append(Leak(one.shown, two.shown))
                    break
        return len(held_out), found


def _minima(texts: list[bytes]) -> npt.NDArray[np.uint64]:
    """[documents, 4]: the smallest of each hash over all runs of a document."""
    sizes = np.array([len(text) for text in texts])
    ends = np.cumsum(sizes)
    begins = ends - sizes
    content = np.frombuffer(b"".join(texts), np.uint8).astype(_U64)
    with np.errstate(over="ignore"):
        # Runs of 2, 4, 8 and 16 from the ones half as long; 24 are 16 and 8.
        runs = {1: content + _U64(1)}
        for length in (1, 2, 4, 8):
            runs[2 * length] = _joined(runs[length], runs[length], length)
        values = _joined(runs[16], runs[8], 16)
        values = (values ^ (values >> _U64(29))) * _U64(_SALTS[0])
        values ^= values >> _U64(32)
        whole = np.repeat(ends, sizes)[: len(values)] >= np.arange(len(values)) + _RUN
        # One in eight is enough; the first of each document is there for short ones.
        taken = whole & ((values & _U64(7)) == 0)
        taken[begins] = True
        places = np.flatnonzero(taken)
        values, firsts = values[places], np.searchsorted(places, begins)
        columns = []
        for salt in _SALTS:
            mixed = values * _U64(salt)
            mixed ^= mixed >> _U64(31)
            columns.append(np.minimum.reduceat(mixed, firsts))
    return np.stack(columns, axis=1)


def _joined(
    left: npt.NDArray[np.uint64], right: npt.NDArray[np.uint64], length: int
) -> npt.NDArray[np.uint64]:
    count = min(len(left), len(right) - length)
    power = _U64(pow(_MULTIPLIER, length, 1 << 64))
    return left[:count] * power + right[length : length + count]
