"""What `longhaul simulate` is asked, as scenarios, and their simulation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.config.size import known_vocabulary, model_size
from longhaul.core.errors import UsageError
from longhaul.core.units import Seconds, short_seconds
from longhaul.parallel.layout import Layout, layout_for
from longhaul.plan.failure_rates import BLOOM_176B, LLAMA_3_405B, OPT_175B, PublishedRun
from longhaul.plan.simulate.inputs import Scenario
from longhaul.plan.simulate.outcome import Result
from longhaul.plan.simulate.presets import PRESETS, llama_3_405b, with_longhaul
from longhaul.plan.simulate.study import SIZES, Size, Swing, away

RATES: Final[dict[str, PublishedRun]] = {
    "opt-175b": OPT_175B, "llama-3-405b": LLAMA_3_405B, "bloom-176b": BLOOM_176B,
}  # fmt: skip
_GPUS_PER_NODE = 8
_ASSUMED_FLOPS = 0.4 * 989e12
"""A GPU's achieved FLOP/s where no step time is given: 40 % of an H100's dense bfloat16 peak
(NVIDIA's data sheet); the share is assumed, as is what one recipe reaches."""
_WITHOUT_END_DAYS = 30.0
_SLACK = 3.0
"""Times its ideal length, a run is simulated at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest:
    """What was typed; None: not given."""

    recipe: str | None = None
    preset: str | None = None
    options: tuple[str, ...] = ()
    gpus: int | None = None
    days: float | None = None
    seeds: int = 8
    spares: int | None = None
    rates: str | None = None
    step_s: Seconds | None = None


def scenarios_of(asked: SimulateRequest) -> list[Scenario]:
    """A preset as it was and under longhaul, or a recipe under longhaul. UsageError for arguments
    that make no scenario, RecipeError for a recipe.
    """
    if (asked.recipe is None) == (asked.preset is None):
        raise UsageError(
            "simulate takes either a RECIPE or --preset, and exactly one of them",
            f"give a recipe and --gpus, or --preset {' or '.join(PRESETS)}",
        )
    if asked.rates is not None and asked.rates not in RATES:
        raise UsageError(f"--rates {asked.rates}: unknown", f"known are {', '.join(RATES)}")
    if asked.preset is None:
        assert asked.recipe is not None
        return [_of_recipe(asked.recipe, asked)]
    if asked.preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise UsageError(f"--preset {asked.preset}: unknown", f"known are {known}")
    if asked.options or asked.step_s is not None:
        raise UsageError(
            "--set and --step-seconds go with a RECIPE; a preset is a published run",
            "leave them out, or give a recipe in the preset's place",
        )
    was = _with_rates(PRESETS[asked.preset](), asked)
    if asked.gpus is not None and asked.gpus != was.gpus:
        was = _resized(was, asked.gpus)
    if asked.spares is not None:
        was = replace(was, spares=asked.spares)
    if asked.days is not None:
        was = replace(was, days=asked.days)
    return [was, with_longhaul(was)]


def simulated(
    scenarios: Sequence[Scenario], seeds: int, say: Callable[[str], None]
) -> list[Result]:
    """Simulate each with so many seeds; UsageError where simpy is not installed."""
    require_simpy()
    from longhaul.plan.simulate.engine import simulate

    found = []
    for scenario in scenarios:
        say(f"simulating {scenario.name}: {scenario.gpus:,} GPUs, up to {scenario.days:.4g} days, "
            f"{seeds} {'seeds' if seeds > 1 else 'seed'}")  # fmt: skip
        found.append(simulate(scenario, range(seeds)))
    return found


def varied(scenario: Scenario, seeds: int, say: Callable[[str], None]) -> list[Swing]:
    """What each assumed input does, with so many seeds each."""
    from longhaul.plan.simulate.study import swings

    say(f"varying the assumed inputs of {scenario.name}")
    return swings(scenario, range(seeds))


def studied(
    seeds: int, say: Callable[[str], None], sizes: Sequence[int] = SIZES, failures: float = 150.0
) -> list[Size]:
    """The study over sizes."""
    from longhaul.plan.simulate.study import sized

    found = []
    for gpus in sizes:
        say(f"simulating {gpus:,} GPUs, and what would help them")
        found.append(sized(gpus, range(seeds), failures))
    return found


def require_simpy() -> None:
    """UsageError where the library is not installed."""
    try:
        import simpy  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            "simulate: simpy is not installed", "pip install 'longhaul[simulate]'"
        ) from error


def _with_rates(scenario: Scenario, asked: SimulateRequest) -> Scenario:
    if asked.rates is None:
        return scenario
    run = RATES[asked.rates]
    if run.rates == scenario.rates:
        return scenario
    return _not_as_published(replace(scenario, rates=run.rates))


def _not_as_published(scenario: Scenario) -> Scenario:
    return replace(scenario, published=None, published_source="", at_least=False, ideal_gpus=None)


def _resized(scenario: Scenario, gpus: int) -> Scenario:
    """The same batch on another number of GPUs."""
    inner = scenario.wanted.tensor * scenario.wanted.pipeline
    data, rest = divmod(gpus, inner)
    if rest or not data:
        raise UsageError(
            f"--gpus {gpus}: not a multiple of {inner}, which one replica of {scenario.name} takes",
            f"give {max(1, data) * inner} or {(data + 1) * inner}",
        )
    if data > scenario.sequences:
        raise UsageError(
            f"--gpus {gpus}: {data} data ranks for {scenario.sequences} sequences a step",
            f"give {scenario.sequences * inner} at most",
        )
    before = -(-scenario.sequences // scenario.wanted.data_size)
    step_s = scenario.step_s * -(-scenario.sequences // data) / before
    sized = replace(
        scenario,
        name=f"{scenario.name} on {gpus:,} GPUs",
        gpus=gpus,
        step_s=step_s,
        wanted=Layout(shard=data, tensor=scenario.wanted.tensor, pipeline=scenario.wanted.pipeline),
        spares=max(1, round(scenario.spares * gpus / scenario.gpus)),
    )
    return _not_as_published(sized)


def _of_recipe(name: str, asked: SimulateRequest) -> Scenario:
    """A recipe under longhaul, on GPUs that fail as another run's did."""
    if asked.gpus is None:
        raise UsageError("--gpus is missing: a recipe does not say how many train it",
                         "give for instance --gpus 1024")  # fmt: skip
    resolved = load_recipe(name, asked.options).recipe
    layout = layout_for(resolved.parallel, asked.gpus)
    sequences = max(stage.sequences for stage in resolved.batch_stages())
    if layout.data_size > sequences:
        raise UsageError(
            f"--gpus {asked.gpus}: {layout.data_size} data ranks for {sequences} sequences a step",
            "give fewer GPUs, or --set batch.sequences to a larger batch",
        )
    step_s = asked.step_s or _step_seconds(resolved, asked.gpus)
    total = resolved.total_steps()
    ideal_days = total * step_s / 86_400 if total else _WITHOUT_END_DAYS / _SLACK
    base = replace(
        llama_3_405b(), gpus=asked.gpus, rates=RATES[asked.rates or "llama-3-405b"].rates
    )
    under = with_longhaul(base)
    return replace(
        under,
        name=f"{Path(name).stem} under longhaul",
        gpus_per_node=min(_GPUS_PER_NODE, asked.gpus),
        spares=max(1, round(away(under))) if asked.spares is None else asked.spares,
        days=asked.days if asked.days is not None else _SLACK * ideal_days,
        step_s=step_s,
        wanted=layout,
        recipe=resolved,
    )


def _step_seconds(recipe: Recipe, gpus: int) -> Seconds:
    """Of the largest batch, at the assumed FLOP/s of each GPU."""
    vocab_size, _ = known_vocabulary(recipe)
    flops = model_size(recipe.model, vocab_size).flops_per_token(recipe.block_length())
    tokens = max(stage.sequences * stage.sequence_length for stage in recipe.batch_stages())
    return flops * tokens / (gpus * _ASSUMED_FLOPS)


def words(result: Result) -> list[str]:
    """What a terminal shows of a result, line by line."""
    scenario, effective = result.scenario, result.effective
    head = f"{scenario.name}: {effective.value:.1%} effective"
    if len(result.outcomes) > 1:
        head += (
            f" (95 % of the mean over {len(result.outcomes)} seeds: {effective.low:.1%} to "
            f"{effective.high:.1%}; single runs {result.spread[0]:.1%} to {result.spread[1]:.1%})"
        )
    lines = [head]
    if scenario.published is not None:
        sign = "> " if scenario.at_least else ""
        lines.append(f"  published {sign}{scenario.published:.1%}: {scenario.published_source}")
    wall = result.mean(lambda outcome: outcome.wall_s)
    lines.append(
        f"  {scenario.nodes:,} nodes and {scenario.spares} spares, {short_seconds(wall)}, a step "
        f"in {scenario.step_s:.3g} s: {result.mean(lambda o: sum(o.failures.values())):.3g} "
        f"failures, {result.mean(lambda o: o.numeric):.3g} incidents of the numbers, a person "
        f"waited for {result.mean(lambda o: o.people):.3g} times"
    )
    lost = [f"{part} {share:.2%}" for part, share in result.limits() if share >= 0.00005]
    lines.append(f"  not in training: {', '.join(lost) or 'nothing'}")
    return lines
