"""`longhaul train`: a new run, or an old one where it stopped.

Enters: what was typed. Leaves: a run's folder that holds all a worker needs, and its exit code.
Never knows: torch; mistakes are told before it is imported.
"""

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

from longhaul.config.load import shipped_recipes
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.lease import refuse_if_held
from longhaul.run.asked import (
    Asked,
    ask,
    ask_again,
    changed_settings,
    has_asked,
    read_asked,
    write_asked,
)
from longhaul.run.past import read_past
from longhaul.run.view import View
from longhaul.run.worker import work


@dataclass(frozen=True)
class Start:
    """What was typed."""

    recipe: str
    options: tuple[str, ...] = ()
    data: str | None = None
    new: bool = False
    runs: Path = Path("runs")
    prepared: Path = Path("prepared")


def start(typed: Start, view: View) -> ExitCode:
    """Start or go on with the run of a recipe, or with a run named itself.

    Raises:
        RecipeError: the recipe is wrong, or would turn the run into another one.
        LeaseHeld: somebody is training this run.
    """
    clock = RealClock()
    folder, asked = _what_is_meant(typed)
    if folder.exists and has_asked(folder):
        refuse_if_held(folder, clock)
        before = read_asked(folder)
        asked = ask_again(before, asked)
        finished = read_past(folder).finished
        if finished is not None and not _wants_more(finished, asked):
            _say_finished(folder, finished, view)
            return ExitCode.FINISHED
        changed = changed_settings(before.settings(), asked.settings())
        for setting, (old, new) in changed.items():
            view.say(f"recipe changed: {setting} {old!r} → {new!r}")
    create_run(folder.path, clock)
    write_asked(folder, asked)
    view.say(f"run: {folder.path}")
    return work(folder.path, view)


def _what_is_meant(typed: Start) -> tuple[RunFolder, Asked]:
    if not typed.new and typed.recipe not in shipped_recipes():
        for path in (typed.runs / typed.recipe, Path(typed.recipe)):
            folder = RunFolder(path)
            if folder.exists and has_asked(folder):
                known = read_asked(folder)
                return folder, ask(known.recipe, typed.options, typed.data, Path(known.prepared))
    asked = ask(typed.recipe, typed.options, typed.data, typed.prepared)
    path = typed.runs / asked.settings().name
    return RunFolder(_free_path(path) if typed.new else path), asked


def _wants_more(finished: Event, asked: Asked) -> bool:
    settings = asked.settings()
    if finished.data.get("out_of_time"):
        hours, before = settings.train.max_hours, finished.data.get("max_hours")
        return hours is None or (before is not None and hours > before)
    total = settings.total_steps()
    return total is None or total > finished.step


def _say_finished(folder: RunFolder, finished: Event, view: View) -> None:
    loss, bits = float(finished.data["loss"]), float(finished.data["bits_per_byte"])
    limit = " at its time limit" if finished.data.get("out_of_time") else ""
    view.say(
        f"run {folder.name} is finished{limit}: {finished.step:,} steps, validation loss "
        f"{loss:.4f} nats, {bits:.4f} bits per byte\n"
        f"  → --new starts another one beside it; --set train.steps=… goes on with this one\n"
        f"run: {folder.path}"
    )


def _free_path(path: Path) -> Path:
    candidates = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(p for p in chain([path], candidates) if not RunFolder(p).exists)
