"""Orders of a million million things that take no memory: keyed bijections on 0 … size-1."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from longhaul.core.schedules import derive_key

Int64s = NDArray[np.int64]
_UInt64s = NDArray[np.uint64]
_ROUNDS = 6


class Permutation:
    """A keyed bijection on 0 … size-1, computed without a table.

    A balanced Feistel network over the smallest even number of bits that holds `size`, repeated
    on values that fall outside (cycle walking; Black and Rogaway 2002, method 2). The domain is
    below 4 × size, so a value walks 4 rounds on average at worst.
    """

    def __init__(self, size: int, key: int) -> None:
        if size < 1:
            raise ValueError(f"a permutation needs at least one element, not {size}")
        self.size = size
        half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_bits = np.uint64(half_bits)
        self._half_mask = np.uint64((1 << half_bits) - 1)
        self._keys = [np.uint64(derive_key(key, "feistel", n)) for n in range(_ROUNDS)]

    def __call__(self, index: Int64s) -> Int64s:
        """Images of `index` (any shape), each in 0 … size-1."""
        value = self._network(index.astype(np.uint64))
        outside = value >= self.size
        while outside.any():
            value[outside] = self._network(value[outside])
            outside = value >= self.size
        return value.astype(np.int64)

    def _network(self, value: _UInt64s) -> _UInt64s:
        left, right = value >> self._half_bits, value & self._half_mask
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._half_mask)
        return (left << self._half_bits) | right


def _mix(value: _UInt64s) -> _UInt64s:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014); wraps around by design."""
    with np.errstate(over="ignore"):
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


class WindowedPermutation:
    """A keyed bijection that stays within a window of its domain for as long as the window is wide.

    The domain is cut into windows of `width` from its beginning; the last is what is left. They
    follow each other in a keyed order, each shuffled by itself.
    """

    def __init__(self, size: int, width: int, key: int) -> None:
        count = -(-size // width)
        self._size, self._width, self._key = size, width, key
        every = np.arange(count, dtype=np.int64)
        self._order: Int64s = Permutation(count, derive_key(key, "windows"))(every)
        widths = np.minimum(width, size - self._order * width)
        self._ends: Int64s = np.cumsum(widths)
        self._within = lru_cache(maxsize=4)(self._shuffled)

    def __call__(self, index: Int64s) -> Int64s:
        """Images of `index` (any shape), each in 0 … size-1."""
        place = np.searchsorted(self._ends, index, side="right")
        image = np.empty_like(index)
        for number in np.unique(place).tolist():
            here = place == number
            blocks, end = self._window(number)
            rank = index[here] - (end - len(blocks))
            image[here] = blocks.start + self._within(number)(rank)
        return image

    def window_at(self, index: int) -> tuple[range, int]:
        """The images of the window that `index` is in, and the index at which the next begins."""
        return self._window(int(np.searchsorted(self._ends, index, side="right")))

    def _window(self, number: int) -> tuple[range, int]:
        begin = int(self._order[number]) * self._width
        return range(begin, min(begin + self._width, self._size)), int(self._ends[number])

    def _shuffled(self, number: int) -> Permutation:
        blocks, _ = self._window(number)
        return Permutation(len(blocks), derive_key(self._key, "window", blocks.start))
