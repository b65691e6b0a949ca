"""What a simulation is asked: how far the assumed inputs matter, and what limits each size."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, quantiles
from typing import Final

from longhaul.config.load import load_recipe, with_overrides
from longhaul.parallel.layout import Layout
from longhaul.plan.failure_rates import LLAMA_3_405B
from longhaul.plan.ladder.fit import Interval, mean95
from longhaul.plan.simulate.decisions import hang_deadline
from longhaul.plan.simulate.engine import simulate
from longhaul.plan.simulate.inputs import Input, Scenario
from longhaul.plan.simulate.outcome import Part, Result
from longhaul.plan.simulate.presets import llama_3_405b, with_longhaul

SIZES: Final = (8, 128, 1024, 4096, 16_384, 131_072)
"""GPUs."""
_FAILURES = 150.0
"""Failures that a size is simulated for, where that takes no more than `_MOST_DAYS`."""
RESTARTS_EXPECTED: Final = 4.0
"""Times the failures expected in a day, that `supervise.restarts_per_day` is raised to."""
_MOST_DAYS, _LEAST_DAYS = 365.0, 0.5


@dataclass(frozen=True, slots=True)
class Swing:
    """What one assumed input does to the effective time, all others at their values."""

    name: str
    given: Input
    low: float
    """Effective time, a share of wall time, with the input at its low end."""
    high: float

    @property
    def width(self) -> float:
        """Points between the two ends, a share."""
        return abs(self.high - self.low)


def swings(scenario: Scenario, seeds: Sequence[int]) -> list[Swing]:
    """The effect of every assumed input that has a span, the largest first."""
    found = []
    for name, given in scenario.inputs.listed():
        if not given.assumed or given.low is None or given.high is None:
            continue
        ends = [
            simulate(scenario.with_input(name, end), seeds).effective.value
            for end in (given.low, given.high)
        ]
        found.append(Swing(name, given, *ends))
    return sorted(found, key=lambda swing: -swing.width)


@dataclass(frozen=True, slots=True)
class Span:
    """Effective time where all assumed inputs are drawn at once, each from its own span."""

    low: float
    """A tenth of the draws lie below."""
    middle: float
    high: float
    """A tenth of the draws lie above."""
    draws: int
    within: float | None
    """Share of draws that agree with what was published, within five points."""


def span(scenario: Scenario, draws: int) -> Span:
    """Effective time over the assumed inputs; a draw is log-uniform where both ends are above 0."""
    values, agree = list[float](), list[bool]()
    for seed in range(draws):
        result = simulate(_drawn(scenario, random.Random(f"span {seed}")), [seed])
        values.append(result.effective.value)
        agree.append(bool(result.within(0.05)))
    tenths = quantiles(values, n=10, method="inclusive")
    within = fmean(agree) if scenario.published is not None else None
    return Span(tenths[0], tenths[4], tenths[8], draws, within)


def _drawn(scenario: Scenario, chance: random.Random) -> Scenario:
    for name, given in scenario.inputs.listed():
        if given.assumed and given.low is not None and given.high is not None:
            low, high, share = given.low, given.high, chance.random()
            value = low * (high / low) ** share if low > 0 else low + (high - low) * share
            scenario = scenario.with_input(name, value)
    return scenario


def at_size(gpus: int, failures: float = _FAILURES) -> Scenario:
    """A run under longhaul on so many GPUs that fail as Llama 3's did: tensor ways fill a node, 16
    sequences a node, steps as long as there, as many spares as nodes are away on average.
    """
    base = with_longhaul(llama_3_405b())
    nodes = -(-gpus // base.gpus_per_node)
    per_day = gpus * LLAMA_3_405B.per_gpu_day
    recipe = with_overrides(
        load_recipe("llama-8b").recipe,
        {
            "train.steps": 100_000_000, "train.tokens": None, "batch.sequences": 16 * nodes,
            "supervise.replace_stragglers": True,
            # The default of 100 would stop a run that fails every twenty minutes, as it should.
            "supervise.restarts_per_day": max(100, math.ceil(RESTARTS_EXPECTED * per_day)),
        },
    )  # fmt: skip
    sized = with_longhaul(replace(llama_3_405b(), gpus=gpus))
    inputs = replace(
        sized.inputs, planned_per_day=Input(0.0, "a day", "left out: it does not come with size")
    )
    return replace(
        sized,
        inputs=inputs,
        name=f"{gpus:,} GPUs",
        spares=max(1, round(away(sized))),
        days=min(max(failures / per_day, _LEAST_DAYS), _MOST_DAYS),
        wanted=Layout(shard=nodes, tensor=base.gpus_per_node),
        recipe=recipe,
    )


def away(scenario: Scenario) -> float:
    """Nodes that are being repaired at a time, on average."""
    lasting = sum(rate.per_gpu_day for rate in scenario.rates if rate.lasting)
    inputs = scenario.inputs
    each_s = inputs.replacement_s.value / (1 - min(inputs.returns_broken.value, 0.9))
    return inputs.failure_scale.value * lasting * scenario.gpus * each_s / 86_400


def one_spare_more(scenario: Scenario) -> Scenario:
    """One node more that waits."""
    return replace(scenario, spares=scenario.spares + 1)


def faster_save(scenario: Scenario) -> Scenario:
    """Stall and write of a save take half as long."""
    return _halved(scenario, "save_stall_s", "save_write_s")


def faster_detection(scenario: Scenario) -> Scenario:
    """Everything is seen in half the time: deaths, hangs, wrong numbers, stragglers."""
    inputs = scenario.inputs
    every = scenario.recipe.monitor.hash_every
    hang = inputs.hang_seen_s or Input(hang_deadline(scenario, "step"), "s", "the watchdog's")
    recipe = with_overrides(scenario.recipe, {"monitor.hash_every": max(1, every // 2)})
    half = replace(inputs, hang_seen_s=replace(hang, value=hang.value / 2))
    return _halved(replace(scenario, inputs=half, recipe=recipe), "crash_seen_s")


def faster_restart(scenario: Scenario) -> Scenario:
    """Process groups and the read of a checkpoint take half as long."""
    return _halved(scenario, "restart_s", "load_s")


def _halved(scenario: Scenario, *names: str) -> Scenario:
    for name in names:
        scenario = scenario.with_input(name, getattr(scenario.inputs, name).value / 2)
    return scenario


CHANGES: Final[dict[str, Callable[[Scenario], Scenario]]] = {
    "one spare more": one_spare_more,
    "a save twice as fast": faster_save,
    "detection twice as fast": faster_detection,
    "restarts twice as fast": faster_restart,
}


@dataclass(frozen=True, slots=True)
class Size:
    """One size of the study."""

    result: Result
    worth: dict[str, Interval]
    """Change → points of effective time gained, a share, over the same seeds."""

    @property
    def limit(self) -> tuple[Part, float]:
        """What takes most, and its share."""
        return self.result.limits()[0]


def sized(gpus: int, seeds: Sequence[int], failures: float = _FAILURES) -> Size:
    """Simulate a size, and each change to it."""
    scenario = at_size(gpus, failures)
    base = simulate(scenario, seeds)
    worth = {
        name: gain(base, simulate(change(scenario), seeds)) for name, change in CHANGES.items()
    }
    return Size(base, worth)


def gain(before: Result, after: Result) -> Interval:
    """Points of goodput that a change gains, seed by seed, so that luck falls on both alike."""
    pairs = zip(before.outcomes, after.outcomes, strict=True)
    return mean95([new.goodput - old.goodput for old, new in pairs])


def by_spares(
    scenario: Scenario, spares: Iterable[int], seeds: Sequence[int]
) -> list[tuple[int, Interval]]:
    """Effective time with so many spares."""
    return [(count, simulate(replace(scenario, spares=count), seeds).effective) for count in spares]
