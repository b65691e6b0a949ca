"""What the checks of a preflight start from, and a line of its report."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from longhaul.config.data import SourceSection
from longhaul.config.load import as_toml, load_recipe
from longhaul.config.recipe import Recipe, source_name
from longhaul.config.size import shrunken
from longhaul.config.train import UNWATCHED
from longhaul.core.errors import ExitCode, LonghaulError
from longhaul.core.units import Bytes, Seconds
from longhaul.data.sources import file_stem
from longhaul.parallel.layout import Layout, layout_for

Verdict = Literal["ok", "failed", "skipped"]
_HANGING_S: Seconds = 300.0
"""No process of a small twin takes as long on a machine that is well."""
ALONE = (
    "parallel.tensor=1", "parallel.pipeline=1", "parallel.shard=1", "parallel.replicate=1",
    "parallel.stages_per_rank=1", "machine.processes=1",
)  # fmt: skip
"""What makes a twin of one process."""
_STEPS, _STEPS_IN_FULL = 60, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report."""

    name: str
    verdict: Verdict
    figure: str
    """What was found, or why nothing was looked for."""
    seconds: Seconds = 0.0
    remedy: str = ""
    """If it failed, what to do, as an instruction."""
    code: ExitCode = ExitCode.NEEDS_PERSON
    """If it failed, what `longhaul train` would end with."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The figures, for programs."""


def judged(name: str, figure: str, remedy: str = "", **data: Any) -> Check:
    """A line that is fine unless there is something to be done about it."""
    found: Verdict = "failed" if remedy else "ok"
    return Check(name=name, verdict=found, figure=figure, remedy=remedy, data=data)


def skipped(name: str, why: str, **data: Any) -> Check:
    """A line about what was not looked for."""
    return Check(name=name, verdict="skipped", figure=why, data=data)


def failed(name: str, error: LonghaulError) -> Check:
    """An error as a line of the report."""
    return replace(
        judged(name, error.message, error.remedy), verdict="failed", code=error.exit_code
    )


@dataclass(frozen=True)
class Preflight:
    """What was typed."""

    recipe: str
    """A shipped recipe's name or a file."""
    options: tuple[str, ...] = ()
    """`path=value`."""
    data: str | None = None
    processes: int | None = None
    world: int | None = None
    device_bytes: Bytes | None = None
    """Memory of each device of the real run; None: as on this machine."""
    minutes: float = 2.0
    full: bool = False
    keep: Path | None = None
    runs: Path = Path("runs")
    """Where the run itself would be."""
    prepared: Path = Path("prepared")


@dataclass(frozen=True)
class PreflightContext:
    """One preflight."""

    typed: Preflight
    recipe: Recipe
    """At true size, with every option."""
    folder: Path
    """Where everything of the small twin is."""
    world: int
    """Processes of the real run."""
    processes: int
    """Processes of the small twin."""
    ranks: tuple[str, ...] = ("-m", "longhaul", "preflight-rank")
    """What ranks that compare layouts are started with."""

    @property
    def layout(self) -> Layout:
        """Of the real run."""
        return layout_for(self.recipe.parallel, self.world)

    @property
    def steps(self) -> int:
        """Of the small twin's runs."""
        return _STEPS_IN_FULL if self.typed.full else _STEPS

    @property
    def timeout_s(self) -> Seconds:
        """After which a process of a small twin counts as hanging."""
        return 4 * _HANGING_S if self.typed.full else _HANGING_S

    def sample_of(self, number: int) -> Path:
        """Where the sample of a source lies, that the small twin reads instead."""
        stem = file_stem(_name(self.recipe.data.sources[number]))
        return self.folder / "text" / f"{number}-{stem}.jsonl"

    def twin_options(self, *more: str) -> tuple[str, ...]:
        """All that makes the small twin of the recipe, as it would be typed, with `more` on top."""
        recipe = self.recipe
        paths = (str(self.sample_of(n).resolve()) for n in range(len(recipe.data.sources)))
        sources = [
            {"name": _name(source), "path": path, "weight": source.weight}
            for source, path in zip(recipe.data.sources, paths, strict=True)
        ]
        settings = {"data.sources": sources} | _own_settings(recipe, self.steps)
        settings |= _small_layout(recipe, self.processes)
        own = (f"{path}={as_toml(value)}" for path, value in settings.items())
        return (*self.typed.options, *shrunken(recipe, own_data=True), *own, *more)

    def twin(self, *more: str) -> Recipe:
        """The small twin; RecipeError if it cannot have `more`."""
        return load_recipe(self.typed.recipe, self.twin_options(*more)).recipe


def small_world(recipe: Recipe, processes: int | None) -> int:
    """Processes of the small twin: of each way in which the recipe deals its model out, two."""
    own = _two_wide(recipe)
    return 2 ** min(len(own), 2) if own else min(processes or recipe.machine.processes, 2)


def _two_wide(recipe: Recipe) -> list[str]:
    """Settings of `[parallel]` that deal the model out, the ones that matter most first."""
    parallel = recipe.parallel
    ways = {
        "tensor": parallel.tensor, "pipeline": parallel.pipeline,
        "shard": parallel.shard or 1, "replicate": parallel.replicate or 1,
    }  # fmt: skip
    return [name for name, count in ways.items() if count > 1]


def _small_layout(recipe: Recipe, processes: int) -> dict[str, object]:
    """The recipe's own layout with each of its ways two wide, as many as there are processes."""
    own = _two_wide(recipe)[: processes.bit_length() - 1]
    ways = {name: 2 if name in own else 1 for name in ("tensor", "pipeline", "shard", "replicate")}
    if "replicate" not in own:
        ways["shard"] *= processes // 2 ** len(own)
    settings: dict[str, object] = {f"parallel.{name}": count for name, count in ways.items()}
    settings |= {"machine.processes": processes, "parallel.stages_per_rank": 1}
    if "pipeline" in own:
        settings["parallel.stages_per_rank"] = min(recipe.parallel.stages_per_rank, 2)
        settings["batch.micro_sequences"] = 2
    kept = recipe.model.kv_heads
    if "tensor" in own and kept is not None and kept % 2 == 0:
        settings["model.kv_heads"] = 2
    return settings


def _name(source: SourceSection) -> str:
    return source_name(source.name, source.path)


def _own_settings(recipe: Recipe, steps: int) -> dict[str, object]:
    """What a short run needs, and what must not reach beyond it."""
    supervised = recipe.supervise.model_dump(include={"deadline_s", "grace_s", "signatures"})
    settings: dict[str, object] = {
        "name": "preflight",
        "train.steps": steps,
        "optim.schedule.warmup_steps": min(recipe.optim.schedule.warmup_steps, steps // 6),
        "optim.schedule.from_step": 0,
        "evaluation.interval_steps": steps // 2,
        "evaluation.tokens": 4096,
        "checkpoint.interval_steps": steps // 3,
        # A killed worker must come back from what was saved, not from what a memory still holds.
        "checkpoint.snapshot_interval_steps": 0,
        "sample.tokens": min(recipe.sample.tokens, 20),
        "data.max_broken_fraction": 0.0,
        # As one table: other nodes, and what orders one, stay out of it.
        "supervise": {name: value for name, value in supervised.items() if value is not None},
    }
    if recipe.optim.schedule.decay_steps is not None:
        settings["optim.schedule.decay_steps"] = steps
    if recipe.machine.threads is None:  # several would wait for each other more than compute
        settings["machine.threads"] = 1
    if recipe.monitor.gauge_interval_steps:
        settings["monitor.gauge_interval_steps"] = 10
    if recipe.tokenizer.kind == "numbers":  # the sample is text
        settings["tokenizer"] = {"kind": "bpe", "vocab_size": 512, "training_mb": 1.0}
    if recipe.checkpoint.remote:
        settings["checkpoint.remote"] = []
    settings |= UNWATCHED
    return settings
