"""`longhaul train`: a new run, or an old one where it stopped.

Torch is not imported here: mistakes are refused before.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from pathlib import Path

from longhaul.config.load import load_recipe, sealed_options, shipped_recipes, with_overrides
from longhaul.core.clocks import RealClock, process_start
from longhaul.core.errors import ExitCode
from longhaul.core.output import View
from longhaul.core.records import Event
from longhaul.core.units import loss_in_words
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.lease import Lease, acquire, refuse_if_held, watched_silent
from longhaul.logbook.moves import is_moved, refuse_if_moved
from longhaul.logbook.requests import pending
from longhaul.logbook.run_history import RunHistory, read_run_history
from longhaul.logbook.run_spec import (
    RunSpec,
    changed_settings,
    has_run_spec,
    read_run_spec,
    resolve_spec,
    spec_of_restart,
    spec_with_more,
    write_run_spec,
)
from longhaul.logbook.segments import read_segments
from longhaul.parallel.layout import find_place
from longhaul.store.bring_back import bring_back, is_elsewhere
from longhaul.supervise.causes import load_signatures
from longhaul.supervise.failure_handler import Job
from longhaul.supervise.nodes.placement import node_plan
from longhaul.supervise.ownership import fence, left_over
from longhaul.supervise.replicas import refuse_without_torchft
from longhaul.supervise.sidecars import Sidecars, sidecars_of
from longhaul.supervise.supervisor import Supervisor
from longhaul.supervise.trust import refuse_untrusted


@dataclass(frozen=True)
class Start:
    """What was typed."""

    recipe: str
    options: tuple[str, ...] = ()
    data: str | None = None
    new: bool = False
    runs: Path = Path("runs")
    prepared: Path = Path("prepared")
    trust: bool = False
    """Run the commands that the recipe, or the run's folder, names."""


def start(typed: Start, view: View) -> ExitCode:
    """Start or go on with the run of a recipe, or with a run named itself, in this process.
    RecipeError if the recipe is wrong, or would turn the run into another one; LeaseHeld if
    somebody is training it.
    """
    place = find_place(os.environ)
    if place is not None and place.rank > 0:
        from longhaul.run.train.follower import follow

        return follow(place)

    from longhaul.run.train.worker import leading, work

    def train(folder: RunFolder, asked: RunSpec, lease: Lease) -> ExitCode:
        if beside := sidecars_of(asked.settings(), folder):
            names = ", ".join(sidecar.name for sidecar in beside)
            by_hand = f"`longhaul mirror {folder.path} --to …`"
            view.say(f"not started, as nobody supervises here: {names}; by hand: {by_hand}")
        return work(folder, lease, view)

    return leading(place, lambda: _start(typed, view.say, train))


def start_supervised(
    typed: Start, say: Callable[[str], None], work: Callable[[RunFolder], None]
) -> ExitCode:
    """The same in worker processes that this one watches; each leaves by SystemExit."""
    began = process_start()

    def supervise(folder: RunFolder, asked: RunSpec, lease: Lease) -> ExitCode:
        settings = asked.settings()
        signatures = load_signatures(settings.supervise.signatures)
        processes, device = settings.machine.processes, partial(_device_of, folder)
        if settings.parallel.elastic:
            refuse_without_torchft()
        each = (settings.parallel.shard or 1) if settings.parallel.elastic else None
        with Sidecars(sidecars_of(settings, folder), RealClock()) as sidecars:
            job = Job(folder, settings.supervise, processes, partial(work, folder), signatures,
                      device, node_plan(settings, folder), _worker_words(folder), each,
                      sidecars)  # fmt: skip
            return sidecars.ended_with(Supervisor(job, lease, say, began).run())

    return _start(typed, say, supervise)


def _start(
    typed: Start, say: Callable[[str], None], train: Callable[[RunFolder, RunSpec, Lease], ExitCode]
) -> ExitCode:
    clock = RealClock()
    # First of all: what is typed now has the newest signatures, and the recipe may have old ones.
    options, data = sealed_options(typed.options, typed.data)
    typed = replace(typed, options=options, data=data)
    folder, asked = _what_is_meant(typed, say)
    refuse_if_moved(folder)
    if not typed.new:
        asked = bring_back(folder, asked, say, clock)
    refuse_untrusted(folder, asked, typed.recipe, typed.options, typed.trust, say)
    silent = None
    if folder.exists:
        silent = watched_silent(folder, clock, say)
        refuse = partial(refuse_if_held, folder, clock, silent)
        refuse()
        if left_over(folder):
            fence(folder, asked.settings().supervise.grace_s, say, refuse)
        history = read_run_history(folder)
        if history.finished is not None and not _wants_more(folder, history, asked):
            _say_finished(folder, history.finished, say)
            return ExitCode.FINISHED
    create_run(folder.path, clock)
    # Only the holder of the lease writes what the run is asked to do.
    with acquire(folder, clock, silent).keep() as lease:
        refuse_if_moved(folder)  # it may have left while this start waited
        if has_run_spec(folder) and read_run_history(folder).begun:
            changed = changed_settings(read_run_spec(folder).settings(), asked.settings())
            for setting, (old, new) in changed.items():
                say(f"recipe changed: {setting} {old!r} → {new!r}")
        write_run_spec(folder, asked)
        say(f"run: {folder.path}")
        return train(folder, asked, lease)


def _what_is_meant(typed: Start, say: Callable[[str], None]) -> tuple[RunFolder, RunSpec]:
    if not typed.new and typed.recipe not in shipped_recipes():
        for path in (typed.runs / typed.recipe, Path(typed.recipe)):
            folder = RunFolder(path)
            if folder.exists and has_run_spec(folder):
                return folder, spec_with_more(read_run_spec(folder), typed.options, typed.data)
    folder = RunFolder(typed.runs / load_recipe(typed.recipe).recipe.name)
    # A start that failed before it trained anything binds nobody to what was typed then.
    if not typed.new and folder.exists and has_run_spec(folder) and read_run_history(folder).begun:
        # Judged together with the options of earlier starts: alone they may make no sense.
        here = str(Path.cwd())
        new = RunSpec(typed.recipe, typed.options, typed.data, str(typed.prepared), {}, here)
        return folder, spec_of_restart(read_run_spec(folder), new)
    asked = resolve_spec(typed.recipe, typed.options, typed.data, typed.prepared)
    path = typed.runs / asked.settings().name
    taken = partial(is_elsewhere, asked=asked, say=say)
    return RunFolder(_free_path(path, taken) if typed.new else path), asked


def _wants_more(folder: RunFolder, history: RunHistory, asked: RunSpec) -> bool:
    assert history.finished is not None
    step, data = history.finished.step, history.finished.data
    settings = with_overrides(asked.settings(), history.ledger.overrides_at(step))
    asked_for = {request.kind for request in pending(folder, history.done_requests)}
    if asked_for & {"set", "rollback", "fork"}:
        return True
    if data.get("out_of_time"):
        hours, before = settings.train.max_hours, data.get("max_hours")
        return hours is None or (before is not None and hours > before)
    total = settings.total_steps()
    return total is None or total > step


def _say_finished(folder: RunFolder, finished: Event, say: Callable[[str], None]) -> None:
    # Read from the journal, where what is not a finite number is a text.
    loss = loss_in_words(float(finished.data["loss"]), float(finished.data["bits_per_byte"]))
    out_of_time = finished.data.get("out_of_time")
    limit = " at its time limit" if out_of_time else ""
    more = "a longer --max-hours" if out_of_time else "--set train.steps=…"
    say(
        f"run {folder.name} is finished{limit}: {finished.step:,} steps, validation loss "
        f"{loss}\n"
        f"  → --new starts another one beside it; {more} goes on with this one\n"
        f"run: {folder.path}"
    )


def _free_path(path: Path, taken: Callable[[str], bool]) -> Path:
    candidates = (path.with_name(f"{path.name}-{number}") for number in count(2))
    here = (RunFolder(p) for p in chain([path], candidates))
    free = (run.path for run in here if not (run.exists or is_moved(run)))
    return next(p for p in free if not taken(p.name))


def _worker_words(folder: RunFolder) -> tuple[str, ...]:
    """The command line of a worker, by the module that this process itself was started by."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = "longhaul" if spec is None else spec.name.removesuffix(".__main__")
    return (sys.executable, "-m", module, "worker", str(folder.path.resolve()))


def _device_of(folder: RunFolder) -> str:
    segments = read_segments(folder)
    facts = segments[-1].fingerprint.get("torch", {}) if segments else {}
    return str(facts.get("gpu") or facts.get("device") or "")
