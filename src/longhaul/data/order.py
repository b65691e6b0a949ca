"""The order of draws: which tokens each step reads, a pure function of (seed, draw, slot).

A *draw* is a position in the order of data, in blocks of the run's longest sequence length, which
shorter sequences of a curriculum subdivide; a *slot* is one sequence of a step's batch. Nothing is
stored or shuffled in memory: draw 10^12 costs what draw 0 costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from longhaul.core.errors import DataError
from longhaul.core.schedules import derive_key
from longhaul.data.permutation import Int64s, Permutation, WindowedPermutation

_CHUNK = 1024
_SOON = 1 << 20
"""Draws."""


class Mixture:
    """Deals draws to sources by weight: every `cycle` draws hold each source's exact share.

    Shares are rounded to whole draws by largest remainder, at least one for each weight above
    zero, and spread evenly over the cycle, so that every stretch of data has nearly the asked
    mixture.
    """

    def __init__(self, weights: Sequence[float], cycle: int) -> None:
        drawn = np.asarray(weights) > 0
        if cycle < drawn.sum():
            raise DataError(
                f"order.cycle: {cycle} draws cannot hold one of each of {drawn.sum()} sources",
                f"set order.cycle to {drawn.sum()} or more",
            )
        share = np.asarray(weights, dtype=np.float64) / sum(weights) * cycle
        counts = np.maximum(np.floor(share).astype(np.int64), drawn)
        # Ties go to the earlier source, so that the plan is the same everywhere.
        by_remainder = np.argsort(np.where(drawn, counts - share, np.inf), kind="stable")
        for source in by_remainder[: max(0, cycle - int(counts.sum()))]:
            counts[source] += 1
        while counts.sum() > cycle:
            counts[np.argmax(counts)] -= 1
        self.cycle = cycle
        self.counts: Int64s = counts
        source_of = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        rank_of = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])
        place = np.argsort((rank_of + 0.5) / counts[source_of], kind="stable")
        self._source_at: Int64s = source_of[place]
        self._rank_at: Int64s = rank_of[place]

    def locate(self, draws: Int64s) -> tuple[Int64s, Int64s]:
        """(source, how many draws that source had before) of each draw."""
        turn, place = np.divmod(draws, self.cycle)
        source = self._source_at[place]
        return source, turn * self.counts[source] + self._rank_at[place]

    def taken(self, draws: int) -> Int64s:
        """How many of the first `draws` draws each source has."""
        turns, rest = divmod(draws, self.cycle)
        begun = np.bincount(self._source_at[:rest], minlength=len(self.counts))
        return turns * self.counts + begun

    def draws_until(self, source: int, count: int) -> int:
        """Draws after which a source has had `count` of them, at least one; its weight is not 0."""
        turns, rank = divmod(count - 1, int(self.counts[source]))
        (place,) = np.flatnonzero((self._source_at == source) & (self._rank_at == rank))
        return turns * self.cycle + int(place) + 1


@lru_cache(maxsize=8)
def mixture_of(weights: tuple[float, ...], cycle: int) -> Mixture:
    """The same, kept: a long cycle takes a second to lay out."""
    return Mixture(weights, cycle)


@dataclass(frozen=True, slots=True)
class Stage:
    """Weights that hold from a draw on."""

    from_draw: int
    weights: tuple[float, ...]
    """Share of each source, in order; 0 leaves a source out."""
    cycle: int | None = None
    """Draws after which the shares are exact; that of the order when absent."""
    sources: tuple[int, ...] | None = None
    """Number of the source that each weight is for; all sources in their order when absent."""


class StagedMixture:
    """Mixtures that follow each other from draw 0 on, each with cycles counted from its beginning;
    a source goes on where the stage before left it.
    """

    def __init__(self, stages: Sequence[Stage], cycle: int, num_sources: int = 0) -> None:
        self._begins = np.array([stage.from_draw for stage in stages], dtype=np.int64)
        if self._begins[0] != 0 or (np.diff(self._begins) <= 0).any():
            raise ValueError(f"stages begin at draws {self._begins.tolist()}, not 0 and rising")
        self._mixtures = [mixture_of(stage.weights, stage.cycle or cycle) for stage in stages]
        numbers = [
            np.array(stage.sources or range(len(stage.weights)), np.int64) for stage in stages
        ]
        count = max(num_sources, 1 + max(int(each.max()) for each in numbers))
        self._numbers = numbers
        self._before = [np.zeros(count, dtype=np.int64)]
        for number, length in enumerate(np.diff(self._begins).tolist()):
            self._before.append(self._taken(number, length))

    def _taken(self, stage: int, length: int) -> Int64s:
        taken = self._before[stage].copy()
        taken[self._numbers[stage]] += self._mixtures[stage].taken(length)
        return taken

    def taken(self, draw: int) -> Int64s:
        """How many of the draws before `draw` each source has."""
        stage = int(np.searchsorted(self._begins, draw, side="right")) - 1
        return self._taken(stage, draw - int(self._begins[stage]))

    def locate(self, draws: Int64s) -> tuple[Int64s, Int64s]:
        """(source, how many draws that source had before in all) of each draw."""
        stage = np.searchsorted(self._begins, draws, side="right") - 1
        source, index = np.empty_like(draws), np.empty_like(draws)
        for number in np.unique(stage).tolist():
            here = stage == number
            local = draws[here] - self._begins[number]
            place, had = self._mixtures[number].locate(local)
            source[here] = self._numbers[number][place]
            index[here] = self._before[number][source[here]] + had
        return source, index


class Order:
    """The order of data of one run.

    `names` of the sources key it: one keeps its order when another is added. `block_counts`: whole
    blocks in each. `stages`: of the mixture; the first begins at draw 0. `cycle`: draws after which
    every source has had exactly its share, where a stage does not say so itself. `window`: blocks
    of a source within which it is shuffled; None: over the whole of it.
    """

    def __init__(
        self,
        seed: int,
        names: Sequence[str],
        block_counts: Sequence[int],
        stages: Sequence[Stage],
        cycle: int = 4096,
        window: int | None = None,
    ) -> None:
        for name, count in zip(names, block_counts, strict=True):
            if count < 1:
                raise DataError(
                    f"source {name}: not enough text for one training sequence",
                    "add text, or shorten model.context",
                )
        self._seed = seed
        self._names = tuple(names)
        self._counts = np.asarray(block_counts, dtype=np.int64)
        self._mixture = StagedMixture(stages, cycle, len(self._names))
        self._window = window
        # Worked out by chunks and kept: the dozens of small array operations of a permutation
        # would cost a small model's step more than reading its tokens does.
        self._chunk = lru_cache(maxsize=64)(self._located)
        self._permutation = lru_cache(maxsize=max(64, 4 * len(names)))(self._permuted)

    def blocks(self, draws: Int64s) -> Int64s:
        """[3, D] of D draws: source, times it had been read in full, block within its tokens."""
        chunk_of, place = np.divmod(draws, _CHUNK)
        numbers = np.unique(chunk_of).tolist()
        if len(numbers) == 1:
            return self._chunk(numbers[0])[:, place]
        found = np.empty((3, len(draws)), np.int64)
        for number in numbers:
            here = chunk_of == number
            found[:, here] = self._chunk(number)[:, place[here]]
        return found

    def epoch(self, draw: int) -> float:
        """How often the source read most often was read up to `draw`; 1.5: one and a half times."""
        return float(self.epochs(draw).max())

    def epochs(self, draw: int) -> NDArray[np.float64]:
        """How often each source was read up to `draw`."""
        return self._mixture.taken(draw) / self._counts

    def _located(self, chunk: int) -> Int64s:
        """Sources, epochs and blocks of a chunk's draws."""
        draws = np.arange(chunk * _CHUNK, (chunk + 1) * _CHUNK, dtype=np.int64)
        source, index = self._mixture.locate(draws)
        epoch, rank = np.divmod(index, self._counts[source])
        block = np.empty_like(rank)
        for pair in set(zip(source.tolist(), epoch.tolist(), strict=True)):
            here = (source == pair[0]) & (epoch == pair[1])
            block[here] = self._permutation(*pair)(rank[here])
        return np.stack([source, epoch, block])

    def _permuted(self, source: int, epoch: int) -> Permutation | WindowedPermutation:
        key = derive_key(self._seed, "order", self._names[source], epoch)
        count = int(self._counts[source])
        if self._window is None or self._window >= count:
            return Permutation(count, key)
        return WindowedPermutation(count, self._window, key)

    def windows_ahead(self, draw: int, count: int) -> Iterator[tuple[int, range]]:
        """Source and blocks of the windows that are read from `draw` on, `count` of each source
        that is drawn from soon, those that are read first before the others. A source that is no
        window wide is one.
        """
        ranks = self._mixture.taken(draw).tolist()
        drawn = (self._mixture.taken(draw + _SOON) > ranks).tolist()
        for _ in range(count):
            for source, size in enumerate(self._counts.tolist()):
                if not drawn[source]:
                    continue
                epoch, rank = divmod(ranks[source], size)
                permuted = self._permutation(source, epoch)
                if isinstance(permuted, Permutation):
                    blocks, end = range(size), size
                else:
                    blocks, end = permuted.window_at(rank)
                ranks[source] = epoch * size + end
                yield source, blocks


def take_draws(draw: int, count: int, skips: Sequence[tuple[int, int]]) -> tuple[Int64s, int]:
    """The next `count` draws from `draw` on that no skip covers, and the draw that follows.

    Skips are ranges (begin, end), sorted and apart, of draws that the ledger passes over.
    """
    pieces: list[Int64s] = []
    for begin, end in skips:
        if count == 0 or end <= draw:
            continue
        free = min(max(begin - draw, 0), count)
        if free:
            pieces.append(np.arange(draw, draw + free, dtype=np.int64))
            count -= free
            draw += free
        if count and draw >= begin:
            draw = end
    pieces.append(np.arange(draw, draw + count, dtype=np.int64))
    return np.concatenate(pieces), draw + count
