"""`longhaul profile`: trains a recipe for a few steps as `longhaul train` does, in one process and
a folder that goes, and says where the time of a step went.
"""

import gc
import gzip
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from longhaul.config.load import as_toml, load_recipe
from longhaul.config.train import UNWATCHED
from longhaul.core.errors import ExitCode, LonghaulError, UsageError
from longhaul.core.output import View
from longhaul.parallel.layout import find_place
from longhaul.plan.profile import TRACE, UNCOMPILED_TRACE, Profile
from longhaul.plan.surprises import Seen
from longhaul.plan.timeline import Timeline, timeline
from longhaul.run.preflight.context import ALONE
from longhaul.run.train.launch import Start, start

if TYPE_CHECKING:
    import torch

WARMUP = 3
"""Steps before those that are watched: the first compiles and makes what is kept."""
_NOTHING_ELSE = (
    *ALONE, "parallel.elastic=false", "evaluation.interval_steps=0", "checkpoint.remote=[]",
    "checkpoint.interval_steps=1000000", "checkpoint.snapshot_interval_steps=0",
    *(f"{path}={as_toml(value)}" for path, value in UNWATCHED.items()),
)  # fmt: skip
"""One process, and nothing but steps."""


class _SayingView(View):
    """Lets through what a start says, and nothing of the steps, or of a folder that goes."""

    def __init__(self, say: Callable[[str], None], temporary: str) -> None:
        self._say, self._temporary = say, temporary

    def say(self, text: str) -> None:
        if self._temporary not in text:
            self._say(text)


def profile(typed: Start, steps: int, out: Path | None, say: Callable[[str], None]) -> Profile:
    """Train, watch so many steps, and write the trace; without `out`, into `profiles/` and a folder
    of the recipe's name. RecipeError if the recipe is wrong; DataError if its text cannot be
    prepared; KeyboardInterrupt if a signal asked training to stop; UsageError if it has too few
    steps, its folder cannot be made, or this is one of many processes.
    """
    if find_place(os.environ) is not None:
        raise UsageError(
            "profile: started as one of several processes",
            "start it once, without torchrun or srun",
        )
    asked = load_recipe(typed.recipe, typed.options, typed.data).recipe
    total, needed = asked.total_steps(), WARMUP + steps + 1
    if total is not None and total < needed:
        raise UsageError(
            f"profile: the recipe ends after {total} steps, and {needed} are needed",
            "give fewer --steps, or --set train.steps=N with a larger N",
        )
    folder = out or Path("profiles") / asked.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder}: no folder ({error.strerror})", "give another --out DIR"
        ) from error
    parallel = asked.parallel
    if max(parallel.tensor, parallel.pipeline, parallel.shard or 1, asked.machine.processes) > 1:
        say("profile: one process, whatever the recipe's layout: no collectives are seen")
    # What its library tells the terminal is no news to anybody.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    without = ("machine.compile=true",) if asked.machine.records_graphs else ()
    if without:
        say("profile: without CUDA graphs, whose operations nobody can name")
    found, seen, device = _watched(typed, steps, folder / TRACE, say, *without)
    every, uncompiled = [found], None
    if seen.compiled:
        say("profile: compiled code has no modules; the same steps uncompiled name them")
        other, seen_too, _ = _watched(
            typed, steps, folder / UNCOMPILED_TRACE, say, "machine.compile=false"
        )
        every, uncompiled = [found, other], (other, seen_too)
    from longhaul.run.profile.ceilings import measure_ceilings

    types = {kind for one in every for operation in one.operations for kind in operation.types}
    return Profile(asked.name, found, measure_ceilings(device, types), seen, folder, uncompiled)


def _watched(
    typed: Start, steps: int, trace: Path, say: Callable[[str], None], *options: str
) -> tuple[Timeline, Seen, "torch.device"]:
    """Train until so many steps are watched."""
    from longhaul.model.code_cache import keep_no_more
    from longhaul.run.profile.watch import ProfileTaken, Watch  # torch takes seconds to import

    watch = Watch(WARMUP, steps, trace)
    with tempfile.TemporaryDirectory(prefix="longhaul-profile-") as temporary:
        every = (*typed.options, *_NOTHING_ELSE, *options)
        began = replace(typed, options=every, runs=Path(temporary))
        try:
            with watch.watching():
                code = start(began, _SayingView(say, temporary))
            if code in (ExitCode.INTERRUPTED, ExitCode.START_AGAIN):
                raise KeyboardInterrupt  # a trainer finishes its step first, and leaves in order
            raise LonghaulError("profile: training ended before all steps were watched")
        except ProfileTaken:
            pass
        finally:
            keep_no_more()  # the folder goes
    gc.collect()  # the model may be in nobody's hands but its own; what follows needs its memory
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return timeline(events), watch.seen, watch.device
