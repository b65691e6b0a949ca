"""`longhaul preflight`: says in two minutes what would have failed in two days.

The recipe is checked at its true size where that is arithmetic (memory, disk, intervals), and
trained as its small twin where it is not: every switch, no size (`config/size.py`).
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name

from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.config.size import known_vocabulary, model_size
from longhaul.core.errors import ExitCode, LonghaulError, UsageError
from longhaul.core.units import Seconds, short_count
from longhaul.parallel.layout import find_place, layout_for
from longhaul.run.preflight.context import (
    Check,
    Preflight,
    PreflightContext,
    failed,
    judged,
    skipped,
    small_world,
)

Checking = Callable[[PreflightContext], Iterator[Check]]
_AS_THE_RUN_WOULD = (
    RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, OSError,
    MemoryError,
)  # fmt: skip
"""What nobody foresaw; the other checks can still say something."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One kind of check."""

    name: str
    check: Checking
    needs_s: Seconds
    """What it takes on two quiet cores: docs/preflight.md, "How long"."""
    after: str = ""
    """Name of the stage without which it can say nothing."""


def preflight(
    typed: Preflight, show: Callable[[Check], None], stages: Sequence[Stage] | None = None
) -> list[Check]:
    """Make all checks, or those of `stages`; every line is shown when it is there.

    RecipeError if the recipe is wrong, or so many processes cannot train it; DataError if a source
    that should be on this machine is not; UsageError if this process is one of several already, or
    `keep` is no empty folder.
    """
    if find_place(os.environ) is not None:
        raise UsageError(
            "preflight: started as one of several processes",
            "start it once, without torchrun or srun; it starts its own",
        )
    began = time.monotonic()
    with ExitStack() as leaving:
        if typed.keep is None:
            own = tempfile.TemporaryDirectory(prefix="longhaul-preflight-")
            folder = Path(leaving.enter_context(own))
        else:
            folder = _made(typed.keep)
        context = _preflight_context(typed, folder)
        limit_s = float("inf") if typed.full else 60 * typed.minutes
        made: list[Check] = []
        for check in _all(context, STAGES if stages is None else stages, began, limit_s):
            made.append(check)
            show(check)
        return made


def verdict(checks: Sequence[Check]) -> tuple[ExitCode, str]:
    """The exit code and one sentence."""
    wrong = [check for check in checks if check.verdict == "failed"]
    if wrong:
        codes = {check.code for check in wrong}
        # One kind of fault has its own code; several kinds need somebody who looks.
        code = codes.pop() if len(codes) == 1 else ExitCode.NEEDS_PERSON
        return code, f"not ready: {len(wrong)} must be mended first ({_names(wrong)})"
    left = [check for check in checks if check.verdict == "skipped" and check.data.get("time")]
    sentence = "ready"
    if left:
        sentence += f" as far as was looked; no time was left for: {_names(left)} (--minutes)"
    return ExitCode.FINISHED, sentence


def _names(checks: Sequence[Check]) -> str:
    return ", ".join(dict.fromkeys(check.name for check in checks))


def _all(
    context: PreflightContext, stages: Sequence[Stage], began: Seconds, limit_s: Seconds
) -> Iterator[Check]:
    """Every line, in order; what no longer fits the time is named."""
    spent_s = expected_s = 0.0
    bad: set[str] = set()
    for stage in stages:
        # A loaded machine takes longer for everything alike.
        slower = max(1.0, spent_s / expected_s) if expected_s else 1.0
        needs_s, stage_began = stage.needs_s * slower, time.monotonic()
        left_s = limit_s - (stage_began - began)
        if stage.after in bad:
            bad.add(stage.name)
            yield skipped(stage.name, f"nothing can be said without: {stage.after}")
            continue
        if needs_s > left_s:
            bad.add(stage.name)
            why = f"takes about {needs_s:.0f} s here, and {max(0.0, left_s):.0f} s are left"
            yield skipped(stage.name, why, time=True)
            continue
        for check in _timed(stage, context):
            if check.data.get("broke"):
                bad.add(stage.name)
            yield check
        spent_s += time.monotonic() - stage_began
        expected_s += stage.needs_s


def _timed(stage: Stage, context: PreflightContext) -> Iterator[Check]:
    """The lines of one stage, each with the seconds since the one before."""
    last = time.monotonic()
    try:
        for check in stage.check(context):
            now = time.monotonic()
            yield check if check.seconds else replace(check, seconds=now - last)
            last = now
    except LonghaulError as error:
        if stage.name == "data":
            raise
        broken = failed(stage.name, error)
        yield replace(broken, seconds=time.monotonic() - last, data={"broke": True})
    except _AS_THE_RUN_WOULD as error:
        first_line = str(error).partition("\n")[0]
        figure = f"{type(error).__name__}: {first_line}"
        broken = judged(stage.name, figure, "the run would end like this: report it", broke=True)
        yield replace(broken, seconds=time.monotonic() - last)


def _preflight_context(typed: Preflight, folder: Path) -> PreflightContext:
    recipe = load_recipe(typed.recipe, typed.options, typed.data).recipe
    options = typed.options
    if recipe.precision.compute == "auto":
        options += _formats_here(recipe)  # of the true shape, not of the small twin's
        recipe = load_recipe(typed.recipe, options, typed.data).recipe
    world = typed.world or _world_of(recipe, typed.processes)
    layout_for(recipe.parallel, world)
    processes = small_world(recipe, typed.processes)
    return PreflightContext(replace(typed, options=options), recipe, folder, world, processes)


def _formats_here(recipe: Recipe) -> tuple[str, ...]:
    """What `precision.compute = "auto"` is on this machine, as options."""
    from longhaul.parallel.device import own_device
    from longhaul.train.precision import measured_recipe

    found = measured_recipe(recipe, own_device(recipe.machine.device))
    return tuple(f"{path}={json.dumps(value)}" for path, value in found.items())


def _world_of(recipe: Recipe, processes: int | None) -> int:
    """Processes of the real run, as far as the recipe says."""
    parallel = recipe.parallel
    layout = parallel.tensor * parallel.pipeline * (parallel.shard or 1) * (parallel.replicate or 1)
    slots = sum(node.slots for node in recipe.supervise.node if not node.spare)
    return slots or max(layout, processes or recipe.machine.processes)


def _made(keep: Path) -> Path:
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep {keep}: not an empty folder", "give it one of its own")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()


def _recipe(context: PreflightContext) -> Iterator[Check]:
    recipe = context.recipe
    size = model_size(recipe.model, known_vocabulary(recipe)[0])
    steps = recipe.total_steps()
    length = "no end but its hours" if steps is None else f"{steps:,} steps"
    figure = (
        f"{short_count(size.total)} parameters, {length}, {recipe.optim.name} in "
        f"{recipe.precision.compute}, {context.world} process{'es' if context.world > 1 else ''}"
        f"{'' if context.layout.size == 1 else f' ({context.layout})'}"
    )
    yield judged("recipe", figure, parameters=size.total)


def _in_file(place: str) -> Checking:
    """A check of a file that is imported when its turn comes: torch takes seconds to import."""
    return lambda context: resolve_name(f"longhaul.run.preflight.{place}")(context)


STAGES = (
    Stage("recipe", _recipe, 0.5),
    Stage("data", _in_file("data:check_data"), 1.5),
    Stage("disk", _in_file("storage:check_disk"), 1.5),
    Stage("remote", _in_file("storage:check_remote"), 0.5),
    Stage("compiler", _in_file("memory:check_compiler"), 0.5),
    Stage("memory", _in_file("memory:check_memory"), 4.0),
    Stage("one batch", _in_file("memory:check_learning"), 1.5),
    Stage("layouts", _in_file("layouts:check_layouts"), 12.0),
    Stage("stretch", _in_file("runs:check_stretch"), 8.0),
    Stage("resume", _in_file("runs:check_resume"), 10.0, after="stretch"),
    Stage("read back", _in_file("runs:check_read_back"), 1.5, after="stretch"),
)
"""What takes little and fails often comes first."""
