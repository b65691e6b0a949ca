"""The course of the loss over a whole run, in a bounded number of blocks.

Enters: a step and its loss. Leaves: the level of any past stretch. Never knows: what was expected.
"""

import math
from itertools import pairwise
from statistics import median

_STEPS_PER_BLOCK = 8
_BLOCKS = 256


class Levels:
    """Median losses of blocks of steps; blocks are merged in pairs whenever there are too many."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._blocks: list[float] = []
        self._steps = _STEPS_PER_BLOCK
        self._losses: list[float] = []
        self._begin = 0

    def push(self, step: int, loss: float) -> bool:
        """Take a finite loss in; true if that completed a block."""
        if not self._losses:
            self._begin = step
        self._losses.append(loss)
        if len(self._losses) < self._steps:
            return False
        self._begins.append(self._begin)
        self._blocks.append(median(self._losses))
        self._losses.clear()
        if len(self._blocks) >= _BLOCKS:
            pairs = range(0, _BLOCKS, 2)
            self._blocks = [(self._blocks[i] + self._blocks[i + 1]) / 2 for i in pairs]
            self._begins = self._begins[::2]
            self._steps *= 2
        return True

    @property
    def begin(self) -> float:
        """First step that is known; infinity before the first block."""
        return self._begins[0] if self._begins else math.inf

    @property
    def first(self) -> float:
        """Level of the first block; NaN before it."""
        return self._blocks[0] if self._blocks else math.nan

    @property
    def last(self) -> float:
        """Level of the last block; NaN before the first."""
        return self._blocks[-1] if self._blocks else math.nan

    def between(self, begin: float, end: float) -> float:
        """Level of the blocks that begin within these steps; NaN if there is none."""
        inside = [
            level
            for first, level in zip(self._begins, self._blocks, strict=True)
            if begin <= first < end
        ]
        return median(inside) if inside else math.nan

    def before(self, step: float) -> float:
        """Level of the last tenth of the steps up to `step`, at least of two blocks."""
        length = max((step - self.begin) / 10, 2 * self._steps + 1)
        return self.between(step - length, step)

    @property
    def noise(self) -> float:
        """Robust standard deviation of one block's level about its neighbours' (0 if unknown)."""
        recent = self._blocks[-32:]
        jumps = [abs(later - earlier) for earlier, later in pairwise(recent)]
        return 1.4826 * median(jumps) / math.sqrt(2) if jumps else 0.0
