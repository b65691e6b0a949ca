"""`longhaul ladder`: trains what the plan wants next until it wants nothing; and reads journals.

Each run is a plain `longhaul train` in a folder of its own, whose name follows from all its
settings: a second start of the same command finds what is finished and goes on with the rest.
"""

import hashlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from statistics import fmean
from typing import Any

from longhaul.config.load import as_toml, load_recipe, parse_override
from longhaul.config.recipe import Recipe
from longhaul.config.train import UNWATCHED
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode, NeedsPerson, RecipeError, UsageError
from longhaul.core.files import write_bytes, write_json
from longhaul.core.records import StepRecord
from longhaul.core.strict import read_object
from longhaul.core.units import Seconds, count, short_count, short_seconds
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.run_history import read_run_history
from longhaul.logbook.run_spec import has_run_spec, resolve_spec, write_run_spec
from longhaul.parallel.layout import find_place
from longhaul.plan.ladder.analysis import Analysis, analyse, as_data, as_markdown
from longhaul.plan.ladder.search import (
    RATES_EXPECTED,
    LadderPlan,
    LadderRun,
    Outcome,
    diverged,
    next_run,
)
from longhaul.plan.ladder.variants import LadderSize, ideas_of, ladder_sizes
from longhaul.store.run_differences import steps_of
from longhaul.supervise.causes import last_message
from longhaul.supervise.run_process import RunProcess

_LOOK_EVERY_S: Seconds = 0.05
_SAVES_WITHIN_S: Seconds = 600.0
"""After which a run that was interrupted is killed."""
_OWN: dict[str, object] = {
    "recover.mode": "report",  # a run that diverges is seen to diverge, not saved
    "recover.diagnose": False,
    "checkpoint.remote": [],
    **UNWATCHED,
    "evaluation.interval_steps": 0,
    "sample.tokens": 0,
}


@dataclass(frozen=True)
class LadderRequest:
    """What was typed."""

    recipe: str
    options: tuple[str, ...] = ()
    data: str | None = None
    count: int = 3
    up_to: float | None = None
    tokens_per_parameter: float | None = None
    seeds: int = 2
    ideas: tuple[str, ...] = ()
    folder: Path | None = None
    prepared: Path = Path("prepared")
    dry: bool = False


def run_ladder(typed: LadderRequest, say: Callable[[str], None]) -> Analysis | None:
    """Train a scaling ladder, or what is left of it; None if it was only to be planned.
    RecipeError or UsageError if the recipe is wrong or makes no such ladder: nothing was started;
    NeedsPerson if a run ended otherwise than by finishing, with its exit code, or if every learning
    rate diverges.
    """
    if find_place(os.environ) is not None:
        raise UsageError(
            "ladder: started as one of several processes",
            "start it once, without torchrun or srun; --set machine.processes=N has N a run",
        )
    recipe = load_recipe(typed.recipe, typed.options, typed.data).recipe
    if recipe.init.from_ is not None:
        raise RecipeError(
            f"init.from: {recipe.init.from_} has weights of one size, and a ladder trains others",
            "take the table [init] out of the recipe",
        )
    sizes = ladder_sizes(recipe, typed.count, typed.up_to, typed.tokens_per_parameter)
    plan = LadderPlan(
        tuple(size.parameters for size in sizes),
        recipe.optim.lr,
        tuple(recipe.seed + number for number in range(typed.seeds)),
        ideas_of(recipe, typed.ideas),
    )
    runs = _LadderRuns(typed, recipe, sizes, plan)
    for line in cost(plan, sizes):
        say(line)
    if typed.dry:
        return None
    runs.fix_formats()
    results: dict[LadderRun, Outcome] = {}
    while (run := next_run(plan, results)) is not None:
        began, found = time.monotonic(), runs.found(run)
        outcome = results[run] = found or runs.train(run)
        took = "made before" if found else short_seconds(time.monotonic() - began)
        without = f" without {run.without}" if run.without else ""
        broken = " diverges" if diverged(outcome) else ""
        said = f"{sizes[run.size].name} rate {run.rate:g} seed {run.seed}{without}"
        say(f"{len(results):4}  {said}: {outcome.loss:.4f} nats{broken}  ({took})")
    analysis = analyse(plan, sizes, results)
    write_json(runs.folder / "ladder.json", as_data(analysis))
    write_bytes(runs.folder / "ladder.md", as_markdown(analysis).encode())
    return analysis


def cost(plan: LadderPlan, sizes: Sequence[LadderSize]) -> list[str]:
    """What will be trained, as far as it can be known before the rates are."""
    lines, total, flops = [], 0, 0.0
    for number, size in enumerate(sizes):
        of_ideas = len(plan.seeds) * (1 + len(plan.ideas))
        runs = of_ideas + (RATES_EXPECTED if number < len(sizes) - 1 else 0)
        total, flops = total + runs, flops + runs * size.flops
        lines.append(
            f"{size.name:>9}: {short_count(size.parameters)} parameters, {size.steps:,} steps, "
            f"{short_count(size.tokens)} tokens and {size.flops:.2g} FLOPs a run, about {runs} runs"
        )
    ideas = ", ".join(idea.name for idea in plan.ideas) or "none"
    lines.append(f"ideas to switch off: {ideas}; {count(len(plan.seeds), 'seed')}")
    lines.append(f"in all about {total} runs, {flops:.2g} FLOPs")
    return lines


class _LadderRuns:
    """The runs of one ladder on disk."""

    def __init__(
        self,
        typed: LadderRequest,
        recipe: Recipe,
        sizes: Sequence[LadderSize],
        plan: LadderPlan,
    ) -> None:
        self._typed, self._recipe, self._sizes, self._plan = typed, recipe, sizes, plan
        self._without = {idea.name: idea.without for idea in plan.ideas}
        self._formats: dict[str, Any] = {}
        self.folder = typed.folder or Path("ladders") / recipe.name
        for size in range(len(sizes)):  # an idea that a size cannot be without is told before
            for without in ("", *self._without):
                run = LadderRun(size, plan.rate, plan.seeds[0], without)
                load_recipe(typed.recipe, self._options(run), typed.data)

    def fix_formats(self) -> None:
        """Let all runs compute alike: `auto` is measured once, at the largest size, and kept."""
        if self._recipe.precision.compute != "auto":
            return
        kept = self.folder / "formats.json"
        if not kept.is_file():
            from longhaul.parallel.device import own_device
            from longhaul.train.precision import measured_recipe

            largest = LadderRun(len(self._sizes) - 1, self._plan.rate, self._plan.seeds[0])
            typed = self._typed
            sized = load_recipe(typed.recipe, self._options(largest), typed.data).recipe
            self.folder.mkdir(parents=True, exist_ok=True)
            write_json(kept, measured_recipe(sized, own_device(sized.machine.device)))
        self._formats = read_object(kept)

    def found(self, run: LadderRun) -> Outcome | None:
        """What its journal says became of a run; None if it is not finished, or not begun."""
        folder = self._folder(run)
        finished = read_run_history(folder).finished
        if finished is None:
            return None
        steps = {record.step: record for record in steps_of(folder)}
        losses = [steps[step].loss for step in sorted(steps)]
        tenth = max(1, len(losses) // 10)
        stretches = [losses[at : at + tenth] for at in range(tenth, len(losses), tenth)] or [losses]
        return Outcome(
            loss=float(finished.data["loss"]),
            untrained=losses[0],
            worst=max(map(fmean, stretches)),
            finite=all(math.isfinite(r.loss) and _updated(r) for r in steps.values()),
        )

    def train(self, run: LadderRun) -> Outcome:
        """Train a run, or go on with it, and read what became of it."""
        folder, typed = self._folder(run), self._typed
        create_run(folder.path, RealClock())
        if not has_run_spec(folder):
            options = (*self._options(run), f"name={folder.name}")
            spec = resolve_spec(typed.recipe, options, typed.data, typed.prepared)
            write_run_spec(folder, spec)
        self._train(folder)
        if (found := self.found(run)) is None:
            raise NeedsPerson(
                f"run {folder.name} of the ladder ended without a last evaluation",
                f"`longhaul log {folder.path} --events` has what happened",
            )
        # Dozens of models nobody asked for; the journal is what is wanted of them.
        rmtree(folder.checkpoints, ignore_errors=True)
        folder.reserve.unlink(missing_ok=True)
        return found

    def _options(self, run: LadderRun) -> tuple[str, ...]:
        """All settings of a run, as for `--set`."""
        without = self._without[run.without] if run.without else ()
        rate = run.rate
        for path, value in map(parse_override, without):
            if path == "optim.lr":  # moved by as much as this size's best is from the recipe's
                rate = float(f"{float(value) * run.rate / self._plan.rate:.4g}")
        settings = _OWN | self._formats | self._sizes[run.size].settings
        own = (f"{path}={as_toml(value)}" for path, value in settings.items())
        return (*self._typed.options, *own, *without, f"optim.lr={rate!r}", f"seed={run.seed}")

    def _folder(self, run: LadderRun) -> RunFolder:
        """Its name is readable, and another one for other settings."""
        resolved = load_recipe(self._typed.recipe, self._options(run), self._typed.data).recipe
        text = json.dumps(resolved.model_dump(mode="json"), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        without = re.sub(r"\W+", "-", f"-without-{run.without}") if run.without else ""
        size = self._sizes[run.size].name
        name = f"{size}-rate{run.rate:g}-seed{run.seed}{without}-{digest}"
        return RunFolder(self.folder / "runs" / name)

    def _train(self, folder: RunFolder) -> None:
        log = folder.path / "output.log"
        training = RunProcess(folder, ["train", str(folder.path)], log)
        try:
            while training.running:
                time.sleep(_LOOK_EVERY_S)
            code = training.wait(0.0)
        except BaseException:  # a signal: let it save, so that the next start goes on from there
            with suppress(ProcessLookupError, NeedsPerson):
                training.send(signal.SIGINT)
                training.wait(_SAVES_WITHIN_S)
            raise
        finally:
            training.close()
        if code != ExitCode.FINISHED:
            error = NeedsPerson(
                f"run {folder.name} of the ladder ended with exit code {code}: "
                f"{last_message(training.output)}",
                f"its output is in {log}; mend what it says, and give the same command again",
            )
            with suppress(ValueError):  # a signal's number
                error.exit_code = ExitCode(code)
            raise error


def _updated(record: StepRecord) -> bool:
    """With a loss scale, updates are skipped while it finds its level; without, by divergence."""
    return not record.loss_scale_at_floor and (record.loss_scale is not None or not record.masked)
