"""The mixture of a run: from weights, temperature, caps and stages to the plan of its draws.

Everything here is a pure function of the recipe, the sizes of its sources, and what the ledger says
was drawn before the mixture was last changed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from longhaul.config.data import DataSection
from longhaul.config.recipe import source_name
from longhaul.core.errors import DataError
from longhaul.data.dataset import Dataset
from longhaul.data.order import Stage, StagedMixture, mixture_of
from longhaul.data.permutation import Int64s
from longhaul.logbook.mixture_changes import DrawnStage, MixtureBefore

_CYCLE = 4096
_FEWEST_IN_CYCLE = 8
"""Draws in a longer cycle of the source with the smallest share, which rounding then moves by 6 %
at most."""
_LONGEST_CYCLE = 1 << 22
"""64 MB of tables; a share of one in four million."""


@dataclass(frozen=True, slots=True)
class MixtureSource:
    """What the plan has to know of a source."""

    name: str
    weight: float
    """The recipe's."""
    num_tokens: int
    """To train on."""
    num_blocks: int
    """Whole blocks among them."""
    max_epochs: float | None = None

    @property
    def most_blocks(self) -> float:
        """Blocks after which it is left out."""
        if self.max_epochs is None:
            return math.inf
        return max(1, math.floor(self.max_epochs * self.num_blocks))


@dataclass(frozen=True)
class MixturePlan:
    """Which source each draw is from, and what follows from it."""

    names: tuple[str, ...]
    """Of the sources, in the order of the data; then those that the recipe has no more."""
    block_counts: tuple[int, ...]
    stages: tuple[Stage, ...]
    """From draw 0 on, each with its own cycle."""
    left_out: tuple[tuple[int, str], ...]
    """Draw from which on a source is left out because it was read as often as it may be."""
    exhausted: int | None
    """Draw from which on every source was read as often as it may be, and all go on; or None."""

    def taken(self, draw: int) -> dict[str, int]:
        """Blocks that each source has in the draws before `draw`."""
        taken = StagedMixture(self.stages, _CYCLE, len(self.names)).taken(draw)
        return dict(zip(self.names, taken.tolist(), strict=True))

    def shares(self, draw: int) -> dict[str, float]:
        """Share of the draws that each source has at `draw`, those without any left out."""
        stage = next(s for s in reversed(self.stages) if s.from_draw <= draw)
        numbers = stage.sources or range(len(stage.weights))
        total = sum(stage.weights)
        return {self.names[n]: w / total for n, w in zip(numbers, stage.weights, strict=True) if w}

    @property
    def drawn(self) -> set[str]:
        """The sources that some stage draws from."""
        return {n for stage in self.stages for n, weight in self._by_name(stage).items() if weight}

    def before(self, draw: int) -> MixtureBefore:
        """What the ledger keeps of it when another mixture begins at `draw`."""
        stages = tuple(
            DrawnStage(stage.from_draw, stage.cycle or _CYCLE, self._by_name(stage))
            for stage in self.stages
            if stage.from_draw < draw
        )
        blocks = dict(zip(self.names, self.block_counts, strict=True))
        return MixtureBefore(draw, stages, blocks)

    def _by_name(self, stage: Stage) -> dict[str, float]:
        numbers = stage.sources or range(len(stage.weights))
        return {self.names[n]: w for n, w in zip(numbers, stage.weights, strict=True)}


def plan_of(
    dataset: Dataset,
    data: DataSection,
    block_length: int,
    cycle: int | Literal["auto"],
    before: MixtureBefore | None = None,
) -> MixturePlan:
    """The plan of a run on this data; DataError as from `plan_mixture`."""
    own = {source_name(source.name, source.path): source for source in data.sources}
    sources = []
    for source in dataset.sources:
        asked = own.get(source.name)  # a run named by its folder may have others' data
        sources.append(
            MixtureSource(
                source.name,
                source.weight if asked is None else asked.weight,
                source.train.num_tokens,
                # A block's last target is the first token of the next block.
                max(0, source.train.num_tokens - 1) // block_length,
                None if asked is None else asked.max_epochs,
            )
        )
    return plan_mixture(sources, data, cycle, before)


def plan_mixture(
    sources: Sequence[MixtureSource],
    data: DataSection,
    cycle: int | Literal["auto"],
    before: MixtureBefore | None = None,
) -> MixturePlan:
    """Plan the draws of `sources` by the weights, temperature and stages of `data`.

    A weight is multiplied by tokens^(1/temperature), as in multilingual pretraining (arXiv
    1907.05019, section 3.2). A source that was read `max_epochs` times gets weight 0, so that its
    share goes to the others in proportion; once that holds for all, all go on. `before`: what was
    drawn until then stays as it was, and each source goes on where it was. DataError if a source
    has not as many blocks as before.
    """
    names = [source.name for source in sources]
    counts = [source.num_blocks for source in sources]
    stages: list[Stage] = []
    begin, taken = 0, np.zeros(len(sources), np.int64)
    if before is not None:
        _refuse_other_blocks(sources, before)
        gone = [name for name in before.blocks if name not in names]
        names, counts = names + gone, counts + [before.blocks[name] for name in gone]
        stages = [
            Stage(s.from_draw, tuple(s.weights.values()), s.cycle,
                  tuple(names.index(name) for name in s.weights))
            for s in before.stages
        ]  # fmt: skip
        if stages:
            begin = before.until
            taken = StagedMixture(stages, _CYCLE, len(names)).taken(begin)[: len(sources)]
    planner = _Planner(sources, cycle, taken, stages)
    own = _weights(sources, data, {})
    for first, weights, end in _eras(sources, data, begin):
        planner.add(first, weights, own, end)
    return MixturePlan(
        tuple(names), tuple(counts), tuple(stages), tuple(planner.left_out), planner.exhausted
    )


def cycle_for(weights: Sequence[float]) -> int:
    """Draws of the cycle in which every share is nearly exact, as few as that takes: 4,096 unless
    a share is finer than one of these.
    """
    smallest = min(weight for weight in weights if weight > 0) / sum(weights)
    if smallest * _CYCLE >= 1:
        return _CYCLE
    return min(_LONGEST_CYCLE, 1 << math.ceil(math.log2(_FEWEST_IN_CYCLE / smallest)))


def _weights(
    sources: Sequence[MixtureSource], data: DataSection, given: Mapping[str, float]
) -> tuple[float, ...]:
    """Of each source the weight that a stage gives, or else its own, times what its size counts."""
    found = []
    for source in sources:
        weight = given.get(source.name, source.weight)
        if data.temperature is not None:
            weight *= float(source.num_tokens ** (1 / data.temperature))
        found.append(weight)
    return tuple(found)


def _eras(
    sources: Sequence[MixtureSource], data: DataSection, begin: int
) -> list[tuple[int, tuple[float, ...], float]]:
    """First draw, weights and end of each stage of the recipe that lies behind draw `begin`."""
    later = sorted(data.stages, key=lambda stage: stage.from_draw)
    all_eras = [(0, _weights(sources, data, {}))]
    all_eras += [(s.from_draw, _weights(sources, data, s.weights)) for s in later]
    ends = [first for first, _ in all_eras[1:]] + [math.inf]
    return [
        (max(first, begin), own, end)
        for (first, own), end in zip(all_eras, ends, strict=True)
        if end > begin
    ]


class _Planner:
    """Appends stages, in which sources that reach their caps are left out one by one."""

    def __init__(
        self,
        sources: Sequence[MixtureSource],
        cycle: int | Literal["auto"],
        taken: Int64s,
        stages: list[Stage],
    ) -> None:
        self._sources, self._cycle, self._taken, self._stages = sources, cycle, taken, stages
        self._most = np.array([source.most_blocks for source in sources])
        self.left_out: list[tuple[int, str]] = []
        self.exhausted: int | None = None

    def add(self, begin: int, weights: Sequence[float], own: Sequence[float], end: float) -> None:
        """A stage of the recipe; `own` weights stand in where all of its sources are read out."""
        while begin < end:
            free = self._taken < self._most
            left = tuple(w if f else 0.0 for w, f in zip(weights, free, strict=True))
            if not any(left):
                left = tuple(w if f else 0.0 for w, f in zip(own, free, strict=True))
            if not any(left):
                left = tuple(weights)
                self.exhausted = begin if self.exhausted is None else self.exhausted
            cycle = cycle_for(left) if self._cycle == "auto" else self._cycle
            self._stages.append(Stage(begin, left, cycle))
            mixture = mixture_of(left, cycle)
            until, reached = end, -1
            for number in np.flatnonzero(free & np.isfinite(self._most)).tolist():
                if mixture.counts[number]:
                    missing = int(self._most[number]) - int(self._taken[number])
                    at = begin + mixture.draws_until(number, missing)
                    if at < until:
                        until, reached = at, number
            if reached >= 0:
                self.left_out.append((int(until), self._sources[reached].name))
            if math.isinf(until):
                return
            self._taken = self._taken + mixture.taken(int(until) - begin)
            begin = int(until)


def _refuse_other_blocks(sources: Sequence[MixtureSource], before: MixtureBefore) -> None:
    for source in sources:
        known = before.blocks.get(source.name, source.num_blocks)
        if source.num_blocks != known:
            raise DataError(
                f"{source.name}: it has {source.num_blocks:,} blocks to train on, and had "
                f"{known:,} when the run began with it: it cannot go on where it was",
                "put its text back as it was, or give the other text another name",
            )
