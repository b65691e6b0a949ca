"""Whether a run is long enough for torch.compile: for `machine.compile = "auto"` it is measured
once, and kept in the ledger; and whether CUDA graphs make it faster still.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.train import CUDA_GRAPHS
from longhaul.core.errors import RecipeError
from longhaul.core.output import Say
from longhaul.core.units import Seconds, count, short_seconds
from longhaul.logbook.run_log import RunLog
from longhaul.model.compiling import refuse_without_compiler
from longhaul.train.parts import Parts

PATH = "machine.compile"
_WHO = "longhaul"
"""Signs what was measured; a decision of anybody else is left alone."""
_LEAST_COMPILE_S: Seconds = 8.0
"""Of a form, forward and backward: one layer of width 16 took 9 s on a CPU, and more on a GPU."""
_MOST_GAIN = 0.5
"""Share of an eager pass that is hoped for; where even that does not pay, nothing is tried."""
_MOST_OF_GRAPHS = 0.3
"""The same of a compiled pass, for graphs: what starts many small operations gains most."""
_PASSES = 4
"""Timed each way, the fastest of which counts: other work only slows."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is left of a run."""

    passes: float
    """Micro-batches of the shape that is measured."""
    forms: int
    """Of passes, each of which is compiled for itself."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What was measured of one form."""

    compile_s: Seconds
    pass_s: Seconds


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether to compile, and why."""

    value: bool | Literal["cuda-graphs"]
    """For `machine.compile`."""
    reason: str


def choose(
    work: Work,
    eager_s: Seconds,
    measure: Callable[[], Compiled],
    measure_graphs: Callable[[], Compiled | str] | None = None,
) -> Choice:
    """Compile if all seconds that it saves are more than all that it takes, and record graphs if
    those that they save on top of that are.

    `eager_s`: of a pass, uncompiled. `measure` compiles a form; not called where that cannot pay.
    What the measurement itself compiles counts too: another machine has to do it again.
    `measure_graphs`: the same as CUDA graphs, or why it failed; None where no device has them.
    """
    total_s = work.passes * eager_s
    takes = f"the run would take about {short_seconds(total_s)} uncompiled"
    if _MOST_GAIN * total_s <= work.forms * _LEAST_COMPILE_S:
        return Choice(False, f"{takes}, and compiling longer than it could save")
    found = measure()
    saved_s = work.passes * (eager_s - found.pass_s)
    spent_s = work.forms * found.compile_s
    measured = (
        f"a micro-batch takes {1e3 * found.pass_s:.3g} ms compiled and {1e3 * eager_s:.3g} ms "
        f"uncompiled, and {count(work.forms, 'form')} of it {short_seconds(spent_s)} to compile"
    )
    if saved_s > spent_s:
        won = f"{measured}, which {short_seconds(saved_s)} saved win back"
        if measure_graphs is None or _MOST_OF_GRAPHS * work.passes * found.pass_s <= spent_s:
            return Choice(True, won)
        return _with_graphs(work, found, measure_graphs(), won)
    return Choice(False, f"{measured}: {takes}, too little to win that back")


def _with_graphs(work: Work, plain: Compiled, graphs: Compiled | str, won: str) -> Choice:
    if isinstance(graphs, str):
        return Choice(True, f"{won}; CUDA graphs failed: {graphs}")
    saved_s = work.passes * (plain.pass_s - graphs.pass_s)
    with_them = f"{won}; with CUDA graphs a micro-batch takes {1e3 * graphs.pass_s:.3g} ms"
    if saved_s > work.forms * graphs.compile_s:
        return Choice(CUDA_GRAPHS, with_them)
    return Choice(True, f"{with_them}, too little to win their recording back")


def with_compile_choice(recipe: Recipe, run_log: RunLog, graphs: bool) -> Recipe:
    """A recipe with what was found for it in place of `auto`; what it says itself ends a choice.
    `graphs`: CUDA graphs can be recorded here, by one process.
    """
    in_force, asked = run_log.ledger.override_at(PATH, 0), recipe.machine.compile
    if asked == "auto":
        earlier = run_log.ledger.withdrawn.get(PATH)
        if in_force is None and earlier is not None:
            _decide(run_log, Choice(earlier.value, earlier.reason))
            in_force = earlier
        if in_force is None:
            return recipe
        if in_force.value == CUDA_GRAPHS and not graphs:
            _decide(run_log, without := Choice(True, "CUDA graphs cannot be recorded here"))
            return with_overrides(recipe, {PATH: without.value})
        return with_overrides(recipe, {PATH: in_force.value})
    if in_force is not None and in_force.who == _WHO:
        run_log.decide(
            "unset", run_log.history.steps_made, {"path": PATH, "old": in_force.value},
            who=_WHO, reason=f"the recipe asks for {str(asked).lower()} now",
        )  # fmt: skip
    return recipe


def settle_compile(
    recipe: Recipe, run_log: RunLog, parts: Parts, say: Say, keep_code: Callable[[Recipe], None]
) -> None:
    """Decide, where the recipe leaves it to be measured, and let the step compute so.

    Training keeps every byte of its state. `keep_code` is given the recipe before anything is
    compiled. LedgerError if the decision could not be written.
    """
    if recipe.machine.compile != "auto":
        return
    with parts.time_buckets.track("compile"):
        choice = _measured(recipe, run_log, parts, keep_code)
    _decide(run_log, choice)
    parts.step.passes.switch(choice.value is not False, choice.value == CUDA_GRAPHS)
    how = {True: "on", False: "off", CUDA_GRAPHS: "on, with CUDA graphs"}[choice.value]
    say(f"compile: {how}; {choice.reason}")


def _decide(run_log: RunLog, choice: Choice) -> None:
    data = {"path": PATH, "value": choice.value, "old": "auto"}
    run_log.decide("set", run_log.history.steps_made, data, who=_WHO, reason=choice.reason)


def _measured(
    recipe: Recipe, run_log: RunLog, parts: Parts, keep_code: Callable[[Recipe], None]
) -> Choice:
    step, begun = parts.step, parts.progress.position.step
    if parts.ranks is not None or recipe.parallel.elastic:
        return Choice(False, "several ranks do not measure it; machine.compile=true compiles")
    settings = with_overrides(recipe, run_log.ledger.overrides_at(begun))
    longest = max(settings.batch_stages(), key=lambda stage: stage.sequence_length)
    at_once = settings.micro_sequences(longest.from_step), longest.sequence_length
    step.settle(settings.model, begun)
    eager_s = min(step.time_passes(*at_once, 1 + _PASSES))

    def measure() -> Compiled:
        compiled = with_overrides(recipe, {PATH: True})
        refuse_without_compiler(compiled, step.device)  # only here, as it may load the compiler
        keep_code(compiled)
        step.passes.switch(compiled=True)
        first, *others = step.time_passes(*at_once, 2 + _PASSES)
        return Compiled(first, min(others))

    def measure_graphs() -> Compiled | str:
        step.passes.switch(compiled=True, records_graphs=True)
        try:
            # Computed once as it was, then recorded, then started as a graph.
            first, second, *others = step.time_passes(*at_once, 3 + _PASSES)
        except Exception as error:  # noqa: BLE001 (nor are graphs that fail)
            return _shortened(error)
        return Compiled(first + second, min(others))

    work = work_left(settings, begun, eager_s, at_once[0])
    try:
        return choose(work, eager_s, measure, measure_graphs if has_graphs(step.device) else None)
    except RecipeError as error:
        return Choice(False, error.message)
    except Exception as error:  # noqa: BLE001 (a compiler that fails is no reason to end)
        return Choice(False, f"compiling failed: {_shortened(error)}")


def has_graphs(device: torch.device) -> bool:
    """Whether a pass can be recorded on it."""
    return device.type == "cuda"


def _shortened(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def work_left(settings: Recipe, begun: int, eager_s: Seconds, at_once: int) -> Work:
    """Of a run after the step `begun`: where hours alone limit it, what they are enough for."""
    stages, total = settings.batch_stages(), settings.total_steps()
    hours = settings.train.max_hours
    limits = [] if hours is None else [hours * 3600 / eager_s]
    if total is not None:
        ends = [*(stage.from_step for stage in stages[1:]), total]
        tokens = sum(
            max(0, min(end, total) - max(begun, stage.from_step))
            * stage.sequences
            * stage.sequence_length
            for stage, end in zip(stages, ends, strict=True)
        )
        limits.append(tokens / (at_once * max(stage.sequence_length for stage in stages)))
    shapes = {
        (min(settings.micro_sequences(stage.from_step), stage.sequences), stage.sequence_length)
        for stage in stages
    }
    ahead = 1 + sum(stage.from_step > begun for stage in settings.model.ahead_stages)
    gauges = 2 if settings.monitor.gauge_interval_steps else 1
    return Work(min(limits), len(shapes) * ahead * gauges)
