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

from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.config.size import known_vocabulary, model_size
from longhaul.core.errors import ExitCode, LonghaulError, UsageError
from longhaul.core.units import Bytes, Seconds, short_count
from longhaul.parallel.layout import find_place, layout_for
from longhaul.run.preflight.preflight_context import (
    Check,
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


@dataclass(frozen=True)
class Preflight:
    """What was typed."""

    recipe: str
    options: tuple[str, ...] = ()
    data: str | None = None
    processes: int | None = None
    world: int | None = None
    device_bytes: Bytes | None = None
    minutes: float = 2.0
    full: bool = False
    keep: Path | None = None
    runs: Path = Path("runs")
    prepared: Path = Path("prepared")


def preflight(
    typed: Preflight, show: Callable[[Check], None], stages: Sequence[Stage] | None = None
) -> list[Check]:
    """Make all checks; every line is shown when it is there.

    Args:
        typed: what was typed.
        show: takes the lines of the report.
        stages: instead of all.

    Raises:
        RecipeError: the recipe is wrong, or so many processes cannot train it.
        DataError: a source that should be on this machine is not.
        UsageError: this process is one of several already, or the room is taken.
    """
    if find_place(os.environ) is not None:
        raise UsageError(
            "preflight: started as one of several processes",
            "start it once, without torchrun or srun; it starts its own",
        )
    began = time.monotonic()
    with ExitStack() as leaving:
        room = _room(typed, leaving)
        context = _preflight_context(typed, room)
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
        names = list(dict.fromkeys(check.name for check in wrong))
        return code, f"not ready: {len(wrong)} must be mended first ({', '.join(names)})"
    left = [check for check in checks if check.verdict == "skipped" and check.data.get("time")]
    if left:
        names = list(dict.fromkeys(check.name for check in left))
        return (
            ExitCode.FINISHED,
            f"ready as far as was looked; no time was left for: {', '.join(names)} (--minutes)",
        )
    return ExitCode.FINISHED, "ready"


def _all(
    context: PreflightContext, stages: Sequence[Stage], began: Seconds, limit_s: Seconds
) -> Iterator[Check]:
    """Every line, in order; what no longer fits the time is named."""
    spent_s = expected_s = 0.0
    bad: set[str] = set()
    for stage in stages:
        # A loaded machine takes longer for everything alike.
        slower = max(1.0, spent_s / expected_s) if expected_s else 1.0
        left_s = limit_s - (time.monotonic() - began)
        if stage.after in bad:
            bad.add(stage.name)
            told = f"nothing can be said without: {stage.after}"
            yield skipped(stage.name, told)
            continue
        if stage.needs_s * slower > left_s:
            bad.add(stage.name)
            needs_s, left_s = stage.needs_s * slower, max(0.0, left_s)
            told = f"takes about {needs_s:.0f} s here, and {left_s:.0f} s are left"
            yield skipped(stage.name, told, time=True)
            continue
        stage_began = time.monotonic()
        broke = False
        for check in _timed(stage, context):
            broke = broke or check.data.get("broke", False)
            yield check
        if broke:
            bad.add(stage.name)
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
        if stage.check is _data:
            raise
        broken = failed(stage.name, error)
        yield replace(broken, seconds=time.monotonic() - last, data={"broke": True})
    except _AS_THE_RUN_WOULD as error:
        first_line = str(error).partition("\n")[0]
        told = f"{type(error).__name__}: {first_line}"
        broken = judged(stage.name, told, "the run would end like this: report it", broke=True)
        yield replace(broken, seconds=time.monotonic() - last)


def _preflight_context(typed: Preflight, room: Path) -> PreflightContext:
    recipe = load_recipe(typed.recipe, typed.options, typed.data).recipe
    options = typed.options
    if recipe.precision.compute == "auto":
        options += _formats_here(recipe)  # of the true shape, not of the small twin's
        recipe = load_recipe(typed.recipe, options, typed.data).recipe
    world = typed.world or _world_of(recipe, typed.processes)
    layout_for(recipe.parallel, world)
    return PreflightContext(
        name=typed.recipe,
        recipe=recipe,
        options=options,
        runs=typed.runs,
        prepared=typed.prepared,
        room=room,
        world=world,
        processes=small_world(recipe, typed.processes),
        device_bytes=typed.device_bytes,
        full=typed.full,
    )


def _formats_here(recipe: Recipe) -> tuple[str, ...]:
    """What `precision.compute = "auto"` is on this machine, as options."""
    from longhaul.parallel.device import own_device
    from longhaul.train.precision import measured_recipe

    found = measured_recipe(recipe, own_device(recipe.machine.device))
    return tuple(f"{path}={json.dumps(value)}" for path, value in found.items())


def _world_of(recipe: Recipe, processes: int | None) -> int:
    """Processes of the real run, as far as the recipe tells."""
    parallel = recipe.parallel
    told = parallel.tensor * parallel.pipeline * (parallel.shard or 1) * (parallel.replicate or 1)
    slots = sum(node.slots for node in recipe.supervise.node if not node.spare)
    return slots or max(told, processes or recipe.machine.processes)


def _room(typed: Preflight, leaving: ExitStack) -> Path:
    if typed.keep is None:
        return Path(
            leaving.enter_context(tempfile.TemporaryDirectory(prefix="longhaul-preflight-"))
        )
    if typed.keep.exists() and (not typed.keep.is_dir() or any(typed.keep.iterdir())):
        raise UsageError(f"--keep {typed.keep}: not an empty folder", "give it one of its own")
    typed.keep.mkdir(parents=True, exist_ok=True)
    return typed.keep.resolve()


def _recipe(context: PreflightContext) -> Iterator[Check]:
    recipe = context.recipe
    size = model_size(recipe.model, known_vocabulary(recipe)[0])
    steps = recipe.total_steps()
    length = "no end but its hours" if steps is None else f"{steps:,} steps"
    told = (
        f"{short_count(size.total)} parameters, {length}, {recipe.optim.name} in "
        f"{recipe.precision.compute}, {context.world} process{'es' if context.world > 1 else ''}"
        f"{'' if context.layout.size == 1 else f' ({context.layout})'}"
    )
    yield judged("recipe", told, parameters=size.total)


def _data(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.data import check_data

    return check_data(context)


def _disk(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.storage import check_disk

    return check_disk(context)


def _remote(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.storage import check_remote

    return check_remote(context)


def _compiler(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.memory import check_compiler

    return check_compiler(context)


def _memory(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.memory import check_memory

    return check_memory(context)


def _layouts(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.layouts import check_layouts

    return check_layouts(context)


def _learning(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.memory import check_learning

    return check_learning(context)


def _stretch(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.runs import check_stretch

    return check_stretch(context)


def _resume(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.runs import check_resume

    return check_resume(context)


def _read_back(context: PreflightContext) -> Iterator[Check]:
    from longhaul.run.preflight.runs import check_read_back

    return check_read_back(context)


STAGES = (
    Stage("recipe", _recipe, 0.5),
    Stage("data", _data, 1.5),
    Stage("disk", _disk, 1.5),
    Stage("remote", _remote, 0.5),
    Stage("compiler", _compiler, 0.5),
    Stage("memory", _memory, 4.0),
    Stage("one batch", _learning, 1.5),
    Stage("layouts", _layouts, 12.0),
    Stage("stretch", _stretch, 8.0),
    Stage("resume", _resume, 10.0, after="stretch"),
    Stage("read back", _read_back, 1.5, after="stretch"),
)
"""What takes little and fails often comes first. Rooms are opened when their turn comes: torch
takes seconds to import."""
