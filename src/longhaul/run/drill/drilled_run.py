"""A drilled run: a real `longhaul train` with all its processes, in a folder of its own, with
faults, started again as a scheduler would. Whether it ended as it ought to is for `verdict.py`.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from longhaul.config.load import load_recipe
from longhaul.core.clocks import RealClock, goodput, time_spent
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.records import Event, Record
from longhaul.core.units import Nats, Seconds
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec, resolve_spec, write_run_spec
from longhaul.run.drill.fault import Fault, check_faults
from longhaul.run.drill.incidents import Incident, incidents
from longhaul.run.drill.laid import Done, lay, read_done
from longhaul.supervise.leftovers import Traces
from longhaul.supervise.run_process import RunProcess

MODULE = "longhaul.cli.disturbed"
_LONGEST_RUN_S: Seconds = 3600.0
_LOOK_EVERY_S: Seconds = 0.05
_SCHEDULED_AGAIN = (int(ExitCode.START_AGAIN), -int(signal.SIGKILL))
"""Ends of the command after which a scheduler starts it again: asked for, or the machine's."""


@dataclass(frozen=True)
class DrilledRun:
    """A run that has ended."""

    folder: RunFolder
    exit_codes: tuple[int, ...]
    """Of its commands, in order; negative numbers are signals."""
    seconds: Seconds
    leftovers: tuple[str, ...]
    """What it left on the machine; nothing if all is well."""
    output: Path = field(repr=False)
    """What its commands said."""

    @property
    def exit_code(self) -> int:
        """Of its last command."""
        return self.exit_codes[-1]

    @cached_property
    def records(self) -> list[Record]:
        """Its journal."""
        return list(read_journal(self.folder))

    @cached_property
    def done(self) -> list[Done]:
        """The faults that came about."""
        return read_done(self.folder)

    @cached_property
    def incidents(self) -> tuple[Incident, ...]:
        """What became of each of them."""
        return incidents(self.done, self.records)

    @cached_property
    def spent(self) -> dict[str, Seconds]:
        """Bucket → seconds."""
        return time_spent(self.records)

    @property
    def goodput(self) -> float:
        """Share of the time spent on training that was kept."""
        return goodput(self.spent)

    @property
    def loss(self) -> Nats:
        """Validation loss at the end; NaN if it did not finish."""
        finished = self.events("finished")
        return float(finished[-1].data["loss"]) if finished else float("nan")

    def events(self, kind: str) -> list[Event]:
        """The events of a kind."""
        return [r for r in self.records if isinstance(r, Event) and r.kind == kind]


def set_up_run(
    recipe: str,
    room: Path,
    name: str,
    *,
    nproc: int = 1,
    sets: Sequence[str] = (),
    data: str | None = None,
) -> RunFolder:
    """A run in a room, not begun. What a recipe would touch elsewhere lies in the room as well.

    Raises:
        RecipeError: the recipe, or what is set, is wrong.
    """
    room.mkdir(parents=True, exist_ok=True)
    sets = (f"machine.processes={nproc}", *sets)
    options = (*_kept_apart(recipe, room, sets, data), *sets)
    asked = resolve_spec(recipe, options, data, room / "prepared")
    folder = create_run(room / name, RealClock())
    write_run_spec(folder, asked)
    return folder


def _kept_apart(recipe: str, room: Path, sets: Sequence[str], data: str | None) -> tuple[str, ...]:
    """Settings that keep a drill from the user's own store and ledger of nodes."""
    given = load_recipe(recipe, tuple(sets), data).recipe
    typed = {option.partition("=")[0].strip() for option in sets}
    own = []
    if given.checkpoint.remote and "checkpoint.remote" not in typed:
        own.append(f"checkpoint.remote={str(room.resolve() / 'remote')!r}")
    if given.supervise.node_ledger and "supervise.node_ledger" not in typed:
        own.append(f"supervise.node_ledger={str(room.resolve() / 'nodes')!r}")
    return tuple(own)


def drilled_run(
    recipe: str | RunFolder,
    faults: Sequence[Fault],
    *,
    room: Path,
    nproc: int = 1,
    sets: Sequence[str] = (),
    name: str = "disturbed",
    most_s: Seconds = _LONGEST_RUN_S,
    meanwhile: Callable[[], object] = lambda: None,
) -> DrilledRun:
    """Train a recipe to its end while faults befall it.

    Args:
        recipe: its name or file; or a run that was set up in the room.
        faults: laid before it starts.
        room: folder for the run, prepared text, and what stands for the world.
        nproc: worker processes.
        sets: `path=value`, as for `--set`.
        name: of the run.
        most_s: for all of them; what is left is killed then.
        meanwhile: called many times a second while it trains.

    Raises:
        RecipeError, UsageError: before anything is started.
        NeedsPerson: it did not end in time.
    """
    if isinstance(recipe, RunFolder):
        folder = recipe
    else:
        folder = set_up_run(recipe, room, name, nproc=nproc, sets=sets)
    check_faults(faults, read_run_spec(folder).settings())
    lay(folder, faults)
    output = room / f"{folder.name}.log"
    traces, began = Traces(folder, room / f"{folder.name}.tmp"), time.monotonic()
    codes: list[int] = []
    try:
        while not codes or codes[-1] in _SCHEDULED_AGAIN:
            command = ("train", str(folder.path.resolve()))
            # Not closed: what a killed supervisor leaves is the next one's business.
            training = RunProcess(folder, command, output, MODULE, traces.environment)
            codes.append(_end_of(training, began + most_s, meanwhile))
        traces.let_go()
        left = traces.leftovers()
    finally:
        traces.close()
    return DrilledRun(folder, tuple(codes), time.monotonic() - began, left, output)


def _end_of(training: RunProcess, deadline: Seconds, meanwhile: Callable[[], object]) -> int:
    """Its exit code, once it has ended by itself."""
    try:
        while training.running:
            if time.monotonic() > deadline:
                raise NeedsPerson(
                    f"run {training.folder.name} of the drill has not ended by itself in time",
                    f"what it said is in {training.log}",
                )
            meanwhile()
            time.sleep(_LOOK_EVERY_S)
    except BaseException:
        training.close()
        raise
    return training.wait(0.0)
