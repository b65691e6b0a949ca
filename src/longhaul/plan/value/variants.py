"""What is trained to learn what a recipe's data is worth: each source left out, each filter off."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from longhaul.config.data import DataSection
from longhaul.config.load import parse_override
from longhaul.config.recipe import Recipe, source_name
from longhaul.config.section import Section
from longhaul.core.errors import UsageError
from longhaul.core.units import Seconds, count, short_count, short_seconds
from longhaul.plan.ladder.variants import LadderSize, size_at

Kind = Literal["whole", "source", "filter", "change"]
WHOLE = "all"
"""The recipe as it is, which every variant is compared with."""
_SWITCHES = ("filters", "dedup", "contamination")
"""Tables below `data` of which every switch that is on is a filter. What changes text, such as
`data.clean`, is none: a document that is held out would be trained on in its other form."""
_CHANGES_TEXT = frozenset({
    "dedup.paragraphs", "filters.c4", "filters.end_marks", "filters.line_words",
    "filters.boilerplate",
})  # fmt: skip
"""Switches that cut documents instead of leaving them out, likewise."""
_MINUTES = 15
_OVERHEAD = 0.5
"""Of the time, for evaluations, start-up, and cores that are not always there."""
_CPU_FLOPS, _GPU_FLOPS = 2e10, 3e13
"""What small models reach of a core, and of a GPU, by experience; the bill is said from it."""
_FEWEST_STEPS = 32


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to train, other than the recipe in its data alone."""

    name: str
    kind: Kind
    settings: tuple[tuple[str, Any], ...] = ()
    """Dotted path and value of what differs."""
    source: str = ""
    """Which one is left out."""

    @property
    def prepares(self) -> bool:
        """Whether it needs prepared text of its own: else only what is drawn differs."""
        return self.kind in ("filter", "change")

    def settings_for(self, recipe: Recipe) -> dict[str, Any]:
        """What differs from a recipe, by dotted path. A source that is left out is prepared and
        evaluated, and not drawn: in no stage of the mixture either.
        """
        if not self.source:
            return dict(self.settings)
        sources = [source.model_dump() for source in recipe.data.sources]
        for source in sources:
            if source_name(source["name"], source["path"]) == self.source:
                source["weight"] = 0.0
        found: dict[str, Any] = {"data.sources": sources}
        if recipe.data.stages:
            own = {source_name(s["name"], s["path"]): s["weight"] for s in sources}
            stages = [stage.model_dump() for stage in recipe.data.stages]
            for stage in stages:
                stage["weights"][self.source] = 0.0
            # One that drew from this source alone is no stage without it.
            found["data.stages"] = [s for s in stages if any((own | s["weights"]).values())]
        return found


@dataclass(frozen=True, slots=True)
class Cell:
    """One small model to train."""

    size: int
    variant: int
    seed: int


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """Everything that is trained."""

    sizes: tuple[LadderSize, ...]
    variants: tuple[Variant, ...]
    """The first is the whole recipe."""
    seeds: tuple[int, ...]
    workers: int
    """Models that are trained at a time."""
    flops_per_s: float
    """Expected of all workers together."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """In the order of training: what can be compared first comes first."""
        return tuple(
            Cell(size, variant, seed)
            for seed in self.seeds
            for size in range(len(self.sizes))
            for variant in range(len(self.variants))
        )

    @property
    def seconds(self) -> Seconds:
        """Expected in all."""
        flops = sum(size.flops for size in self.sizes) * len(self.seeds) * len(self.variants)
        return flops / self.flops_per_s / _OVERHEAD

    def bill(self) -> Iterator[str]:
        """What it costs, said before anything is trained."""
        for size in self.sizes:
            yield (
                f"{size.name:>9}: {short_count(size.parameters)} parameters, "
                f"{count(size.steps, 'step')}, {short_count(size.tokens)} tokens"
            )
        kinds = {kind: [v.name for v in self.variants if v.kind == kind]
                 for kind in ("source", "filter", "change")}  # fmt: skip
        for kind, names in kinds.items():
            if names:
                yield f"each {kind} in and out: {', '.join(names)}"
        yield (
            f"{count(len(self.cells), 'model')} with {count(len(self.seeds), 'seed')}, "
            f"{self.workers} at a time: about {short_seconds(self.seconds)}"
        )


def plan_value(
    recipe: Recipe,
    shares: Sequence[float],
    seeds: int,
    tokens: int | None,
    changes: Sequence[str],
    cores: int,
    on_gpu: bool,
) -> ValuePlan:
    """The plan for a recipe; without `tokens` as many as a quarter of an hour is enough for.
    UsageError if there is nothing to compare, or the recipe has no such sizes.
    """
    variants = (Variant(WHOLE, "whole"), *variants_of(recipe, changes))
    if len(variants) == 1:
        raise UsageError(
            f"recipe {recipe.name}: one source and no filter, so that nothing can be left out",
            "add sources or filters, or name a change of the data with --change PATH=VALUE",
        )
    sizes = [size_at(recipe, share) for share in shares]
    if len({size.name for size in sizes}) < len(sizes):
        names = ", ".join(size.name for size in sizes)
        raise UsageError(
            f"--sizes: of {recipe.model.heads} heads they make {names}",
            "give shares further apart, or --set model.heads=N with more, narrower heads",
        )
    workers = 1 if on_gpu else max(1, cores)
    flops_per_s = _GPU_FLOPS if on_gpu else _CPU_FLOPS * workers
    fewest = 1 if tokens else _FEWEST_STEPS
    if tokens is None:
        runs = seeds * len(variants)
        per_token = sum(size.flops_per_token for size in sizes) * runs
        tokens = int(60 * _MINUTES * _OVERHEAD * flops_per_s / per_token)
        tokens = min(tokens, min(size.tokens for size in sizes))
    stage = recipe.batch_stages()[0]
    per_step = stage.sequences * stage.sequence_length
    tokens = max(fewest, tokens // per_step) * per_step
    return ValuePlan(
        tuple(sorted((size_at(recipe, s, tokens) for s in shares), key=lambda z: z.parameters)),
        variants,
        tuple(recipe.seed + number for number in range(seeds)),
        workers,
        flops_per_s,
    )


def variants_of(recipe: Recipe, changes: Sequence[str]) -> Iterator[Variant]:
    """Each source out, each filter off, and each change that was typed (`PATH=VALUE`)."""
    names = [source_name(source.name, source.path) for source in recipe.data.sources]
    drawn = [s.weight > 0 for s in recipe.data.sources]
    if sum(drawn) > 1:
        for number, name in enumerate(names):
            if drawn[number]:
                yield Variant(f"without {name}", "source", source=name)
    for path, off in _filters(recipe.data):
        yield Variant(f"without {path}", "filter", ((f"data.{path}", off),))
    for change in changes:
        path, value = parse_override(change)
        if not path.startswith("data."):
            raise UsageError(
                f"--change {change}: {path} is no setting below data",
                "the rest of the recipe is the same for all; a ladder compares other ideas",
            )
        yield Variant(f"with {change.strip()}", "change", ((path, value),))


def _filters(data: DataSection) -> Iterator[tuple[str, Any]]:
    """Path below `data` and value when off of every filter that is on."""
    if data.drop_exact_duplicates:
        yield "drop_exact_duplicates", False
    for table in _SWITCHES:
        section = getattr(data, table, None)
        if not isinstance(section, Section):
            continue
        for name, info in type(section).model_fields.items():
            off = info.get_default(call_default_factory=True)
            is_switch = (
                off in (False, None, "", "off", ()) and f"{table}.{name}" not in _CHANGES_TEXT
            )
            if is_switch and getattr(section, name) not in (False, off):
                yield f"{table}.{name}", off
