"""What the small models say of the data: differences with intervals, and whether they keep their
order from one size to the next. Pure.

A difference is the loss of a variant minus that of the whole recipe, of the same seed, in nats on a
held-out set: above zero, the model was better off with what the variant leaves out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from longhaul.core.records import finite_or_word
from longhaul.core.units import Nats, count
from longhaul.plan.ladder.fit import Interval, mean95
from longhaul.plan.value.variants import Cell, ValuePlan, Variant

OVERALL = "all sets"
"""The mean over the held-out sets, each counted alike however large it is."""
_HOLDS, _HOLDS_ROUGHLY = 0.8, 0.5

Losses = Mapping[str, Nats]
"""By held-out set."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What one variant makes of one size's losses."""

    variant: Variant
    by_set: dict[str, Interval]
    """Difference by held-out set, and `OVERALL`."""
    elsewhere: Interval | None = None
    """Mean over the sets of other sources than the one that is left out."""

    @property
    def overall(self) -> Interval:
        """Over all sets."""
        return self.by_set[OVERALL]

    @property
    def verdict(self) -> str:
        """In words, of what the variant leaves out or changes."""
        if not math.isfinite(self.overall.value):
            return "diverged"
        said = _told(self.overall)
        return said if self.elsewhere is None else f"{said}; on other text {_told(self.elsewhere)}"

    @property
    def told(self) -> bool:
        """Whether the overall difference is more than chance."""
        return not self.overall.holds(0.0)


def _told(difference: Interval) -> str:
    if difference.low > 0:
        return "loss rises"
    return "loss falls" if difference.high < 0 else "not told from none"


@dataclass(frozen=True, slots=True)
class SizeWorth:
    """All variants at one size."""

    name: str
    parameters: int
    whole: dict[str, Interval]
    """Loss of the whole recipe by held-out set, and `OVERALL`."""
    worths: tuple[Worth, ...]
    """By falling overall difference."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether two sizes rank the variants alike."""

    smaller: str
    larger: str
    correlation: float
    """Spearman's, of the overall differences; NaN for fewer than three variants."""

    @property
    def sentence(self) -> str:
        """Said plainly."""
        sizes = f"from {self.smaller} to {self.larger}"
        if math.isnan(self.correlation):
            return f"too few variants to say whether their ranking holds {sizes}"
        figure = f"Spearman's rank correlation {self.correlation:.2f}"
        if self.correlation >= _HOLDS:
            return f"the ranking holds {sizes} ({figure})"
        if self.correlation >= _HOLDS_ROUGHLY:
            return f"the ranking holds roughly {sizes} ({figure})"
        return f"the ranking does not hold {sizes} ({figure}): it says nothing of larger models yet"


@dataclass(frozen=True, slots=True)
class Value:
    """A finished study."""

    sizes: tuple[SizeWorth, ...]
    agreements: tuple[Agreement, ...]
    seeds: int
    tokens: int
    """Each model was trained on."""

    def sentences(self) -> Iterator[str]:
        """The result, plainly."""
        for agreement in self.agreements:
            yield agreement.sentence
        last = self.sizes[-1]
        told = [worth for worth in last.worths if worth.told]
        yield (
            f"at {last.name} {len(told)} of {count(len(last.worths), 'difference')} can be told "
            f"from none with {count(self.seeds, 'seed')}"
        )


def analyse(plan: ValuePlan, results: Mapping[Cell, Losses]) -> Value:
    """What the finished cells of a plan say; every one must be there."""
    sizes = tuple(_of_size(plan, number, results) for number in range(len(plan.sizes)))
    agreements = tuple(
        Agreement(smaller.name, larger.name, _agreement(smaller, larger))
        for smaller, larger in pairwise(sizes)
    )
    return Value(sizes, agreements, len(plan.seeds), plan.sizes[0].tokens)


def _of_size(plan: ValuePlan, size: int, results: Mapping[Cell, Losses]) -> SizeWorth:
    def losses(variant: int) -> list[dict[str, Nats]]:
        """By seed."""
        found = (results[Cell(size, variant, seed)] for seed in plan.seeds)
        return [{**own, OVERALL: fmean(own.values())} for own in found]

    whole = losses(0)
    worths = []
    for number, variant in enumerate(plan.variants[1:], 1):
        own = losses(number)
        differences = {
            name: mean95([a[name] - b[name] for a, b in zip(own, whole, strict=True)])
            for name in whole[0]
        }
        others = [name for name in whole[0] if name not in (variant.source, OVERALL)]
        elsewhere = None
        if variant.source in whole[0] and others:
            elsewhere = mean95([
                fmean(a[name] - b[name] for name in others)
                for a, b in zip(own, whole, strict=True)
            ])  # fmt: skip
        worths.append(Worth(variant, differences, elsewhere))
    worths.sort(key=lambda worth: -worth.overall.value)
    return SizeWorth(
        plan.sizes[size].name,
        plan.sizes[size].parameters,
        {name: mean95([loss[name] for loss in whole]) for name in whole[0]},
        tuple(worths),
    )


def _agreement(one: SizeWorth, other: SizeWorth) -> float:
    mine = {worth.variant.name: worth.overall.value for worth in one.worths}
    theirs = {worth.variant.name: worth.overall.value for worth in other.worths}
    names = list(mine)
    return spearman([mine[name] for name in names], [theirs[name] for name in names])


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Rank correlation (Spearman 1904), ties with their mean rank; NaN below three values, for
    constants, and where a value is none.
    """
    if len(x) < 3 or not all(map(math.isfinite, (*x, *y))):
        return math.nan
    a, b = _ranks(x), _ranks(y)
    middle = (len(a) + 1) / 2
    spread = math.sqrt(sum((r - middle) ** 2 for r in a) * sum((r - middle) ** 2 for r in b))
    if not spread:
        return math.nan
    return sum((r - middle) * (s - middle) for r, s in zip(a, b, strict=True)) / spread


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) + 1) / 2 for v in values]


def as_data(value: Value) -> dict[str, Any]:
    """As JSON."""

    def figures(intervals: Mapping[str, Interval]) -> dict[str, list[float]]:
        return {name: [i.value, i.low, i.high] for name, i in intervals.items()}

    data = {
        "seeds": value.seeds,
        "tokens": value.tokens,
        "sentences": list(value.sentences()),
        "agreements": [
            {"smaller": a.smaller, "larger": a.larger, "spearman": a.correlation}
            for a in value.agreements
        ],
        "sizes": [
            {
                "name": size.name,
                "parameters": size.parameters,
                "loss": figures(size.whole),
                "variants": [
                    {"name": worth.variant.name, "kind": worth.variant.kind,
                     "verdict": worth.verdict, "difference": figures(worth.by_set),
                     "elsewhere": worth.elsewhere and [
                         worth.elsewhere.value, worth.elsewhere.low, worth.elsewhere.high]}
                    for worth in size.worths
                ],
            }
            for size in value.sizes
        ],
    }  # fmt: skip
    found: dict[str, Any] = finite_or_word(data)
    return found


def as_lines(value: Value) -> Iterator[str]:
    """A table a size, for a terminal."""
    for size in value.sizes:
        sets = list(size.whole)
        width = max(len(w.variant.name) for w in size.worths)
        yield f"\n{size.name}: nats above the whole recipe's (95 % of {count(value.seeds, 'seed')})"
        yield "  ".join([" " * width, *(f"{name[:20]:>20}" for name in sets)])
        yield "  ".join(
            [f"{'loss of the whole recipe':{width}}"[:width],
             *(f"{i.value:20.4f}" for i in size.whole.values())]
        )  # fmt: skip
        for worth in size.worths:
            cells = (f"{i.value:+.4f} ± {i.high - i.value:.4f}" for i in worth.by_set.values())
            row = [f"{worth.variant.name:{width}}", *(f"{cell:>20}" for cell in cells)]
            yield "  ".join(row) + f"  {worth.verdict}"
    yield ""
    yield from value.sentences()
