"""`make drill-replicas`: replicas of a run killed one by one, at random, while it trains.

Each is started again by the run's own supervisor and healed by a peer; the next kill is timed from
its first new step. The same run by one process, left alone, says afterwards what every loss ought
to have been.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from drills.replica_verdict import (
    MEAN_STEPS,
    SOON_STEPS,
    Apart,
    Course,
    Fate,
    Kill,
    apart,
    complaints,
    fate_of,
    strokes,
)
from drills.runs import LONGEST_S, RECIPE, Say, start
from longhaul.config.load import load_recipe, with_overrides
from longhaul.config.size import shrunken
from longhaul.core.errors import UsageError
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.run_spec import read_run_spec
from longhaul.run.drill.drilled_run import set_up_run
from longhaul.store.catalogue import catalogue
from longhaul.store.run_differences import steps_of
from longhaul.supervise.leftovers import Traces
from longhaul.supervise.ranks.progress import Progress, progress_path, read_progress
from longhaul.supervise.replicas import has_torchft
from longhaul.supervise.run_process import RunProcess, records

_TOGETHER, _ALONE = "replicas", "undisturbed"
_OWN = (
    # As one table: a limit in hours or tokens must not stay behind. Nobody comes so far.
    "train={steps=1000000}",
    # Rates that follow the length of the run would be another run's.
    "optim.schedule.shape=constant",
    # What is dropped depends on how the batch is dealt out.
    "model.dropout=0",
    # What is decided while a replica is away would be decided at another step.
    "recover.diagnose=false",
)
_TINY = ("model.width=32", "model.layers=1", "batch.stages=[]", "batch.micro_sequences=8")
"""What is trained where no recipe is given: rounding stays below 1e-4 for 3,000 steps, so that
every loss says something. In recipe `drill` as it is, it doubles every 15 steps."""
_LEAST_STEPS = 4
"""New steps between two kills: failures of one cause with fewer between them count as no progress
(`supervise/restart.py`), and a replica is right to wait then."""


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed."""

    recipe: str | None = None
    """A tiny one when absent."""
    replicas: int = 3
    lasting_s: Seconds = 300.0
    every_s: Seconds = 60.0
    seed: int = 0
    sets: tuple[str, ...] = ()
    data: str | None = None
    small: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a run whose replicas were killed."""

    fates: tuple[Fate, ...]
    steps: int
    apart: Apart
    seconds: Seconds
    longest_s: Seconds
    """Longest time without a step, from the first step of all replicas to the last kill's end."""
    leftovers: tuple[str, ...]
    complaints: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """All is as it ought to be."""
        return not self.complaints

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield f"{self.steps:,} steps in {short_seconds(self.seconds)}, {len(self.fates)} kills"
        yield from (f"kill {number}: {fate}" for number, fate in enumerate(self.fates, start=1))
        yield f"longest time without a step: {self.longest_s:.2f} s"
        yield (
            f"losses, relative to one process left alone: within {self.apart.soon:.1e} in the first"
            f" {SOON_STEPS} steps, {self.apart.ever:.1e} ever; their means over {MEAN_STEPS} steps "
            f"within {self.apart.means:.1e}"
        )
        left = "; ".join(self.leftovers) or "no process, port, shared memory, temporary file"
        yield f"left behind: {left}"
        yield from (f"  {complaint}" for complaint in self.complaints)


def drill_replicas(typed: Typed, room: Path, say: Say) -> Verdict:
    """Run the drill.

    Args:
        typed: what was typed.
        room: folder for the runs.
        say: prints a line.

    Raises:
        RecipeError, UsageError: something typed is wrong, or torchft is not installed; nothing was
            started.
        NeedsPerson: a replica did not come back, or a run did not end.
    """
    if not has_torchft():
        raise UsageError(
            "replicas that come and go need torchft, which is not installed",
            "install longhaul[ft]; `longhaul drill RECIPE` needs nothing more",
        )
    if there := [name for name in (_TOGETHER, _ALONE) if RunFolder(room / name).exists]:
        raise UsageError(
            f"{room / there[0]}: a run of another drill",
            "give a folder that holds none: --keep DIR",
        )
    folder, alone, each = _set_up(typed, room)
    traces, began = Traces(folder, room / f"{_TOGETHER}.tmp"), time.monotonic()
    try:
        with _training(folder, traces.environment) as training:
            siege = _Siege(training, typed, each, say)
            siege.lay()
            training.send(signal.SIGTERM)
            code = training.wait(LONGEST_S)
        traces.let_go()
        left = traces.leftovers()
        seconds = time.monotonic() - began
        journal = records(folder)
        made = [record for record in journal if isinstance(record, StepRecord)]
        last = max((record.step for record in made), default=0)
        say(f"the same {last:,} steps by one process, left alone")
        expected = _left_alone(alone, traces.environment, last, LONGEST_S + 2 * seconds)
    finally:
        traces.close()
    fates = tuple(
        fate_of(kill, siege.course, back, restarted, journal)
        for kill, back, restarted in siege.struck
    )
    recipe, ledger = read_run_spec(folder).settings(), load_ledger(folder)[0]
    computed_in = with_overrides(recipe, ledger.overrides_at(0)).precision.compute
    wrong = [*complaints(code, fates, journal, expected, computed_in), *left]
    saved = max((checkpoint.step for checkpoint in catalogue(folder.checkpoints)), default=0)
    if saved != last:
        wrong.append(f"step {last} was made, and step {saved} is the last that was saved")
    longest_s = siege.course.longest(siege.began, siege.ended)
    return Verdict(fates, last, apart(made, expected), seconds, longest_s, left, tuple(wrong))


def _set_up(typed: Typed, room: Path) -> tuple[RunFolder, RunFolder, int]:
    """The run by replicas, the same by one process, and how many processes a replica has."""
    recipe, sets = typed.recipe or RECIPE, typed.sets
    if typed.recipe is None:
        sets = (*_TINY, *sets)
    elif typed.small:
        whole = load_recipe(recipe, sets, typed.data).recipe
        sets = (*shrunken(whole, own_data=typed.data is not None), *sets)
    sets = (*sets, *_OWN)
    each = load_recipe(recipe, sets, typed.data).recipe.parallel.shard or 1
    many, elastic = typed.replicas * each, (*sets, "parallel.elastic=true")
    folder = set_up_run(recipe, room, _TOGETHER, nproc=many, sets=elastic, data=typed.data)
    one = (*sets, "parallel.elastic=false", *(("parallel.shard=1",) if each > 1 else ()))
    return folder, set_up_run(recipe, room, _ALONE, sets=one, data=typed.data), each


def _training(folder: RunFolder, environment: Mapping[str, str]) -> RunProcess:
    return start(folder, "train", log=folder.path.with_suffix(".log"), environment=environment)


def _left_alone(
    folder: RunFolder, environment: Mapping[str, str], steps: int, most_s: Seconds
) -> dict[int, StepRecord]:
    """The same steps, by number, by one process."""
    with _training(folder, environment) as training:
        training.wait_for_step(steps, most_s)
        training.send(signal.SIGTERM)
        training.wait(LONGEST_S)
    return {record.step: record for record in steps_of(folder)}


class _Siege:
    """Kills one replica after the other until the time is over."""

    def __init__(self, training: RunProcess, typed: Typed, each: int, say: Say) -> None:
        self._training, self._typed, self._say = training, typed, say
        self._each, self._processes = each, typed.replicas * each
        self.course = Course()
        self.struck: list[tuple[Kill, Seconds, tuple[int, ...]]] = []
        """Each kill, when its replica was back, and who else was started again meanwhile."""
        self.began = self.ended = 0.0

    def lay(self) -> None:
        """Do it; returns when all replicas train."""
        self._training.wait_until("a step by all replicas", self._all_train, LONGEST_S)
        self.began = self.ended = time.monotonic()
        for_s = short_seconds(self._typed.lasting_s)
        self._say(f"{self._typed.replicas} replicas train, {for_s} of kills begin")
        for pause_s, number in strokes(self._typed.seed, self._typed.every_s, self._processes):
            if not self._pause(pause_s, self.began + self._typed.lasting_s):
                return
            self._strike(number)

    def _strike(self, number: int) -> None:
        before, replica = self._training.ranks(), number // self._each
        os.kill(before[number], signal.SIGKILL)
        now, wall = time.monotonic(), time.time()
        self._look()
        kill = Kill(replica, now, wall, self.course.step)
        self._say(f"kill {len(self.struck) + 1}: replica {replica}, at step {kill.step}")
        back: list[Progress] = []

        def is_back() -> bool:
            said = self._look().get(number)
            # A pilot first writes down what was made without it.
            least = max(kill.step + 1, self.course.step - 1)
            if said is not None and said.monotonic > now and said.step >= least:
                back.append(said)
            return bool(back)

        self._training.wait_until(f"replica {replica}, killed at step {kill.step},", is_back,
                                  LONGEST_S)  # fmt: skip
        after = self._training.ranks()
        others = {n: pid for n, pid in before.items() if n // self._each != replica}
        restarted = tuple(n for n, pid in others.items() if after.get(n) != pid)
        self.ended = back[0].monotonic
        self.struck.append((kill, self.ended, restarted))
        self._say(f"replica {replica} is back at step {back[0].step}")

    def _pause(self, pause_s: Seconds, over: Seconds) -> bool:
        """Let them train; False if the time is over."""
        due, least = time.monotonic() + pause_s, self.course.step + _LEAST_STEPS

        def come() -> bool:
            self._look()
            now = time.monotonic()
            return now >= over or (now >= due and self.course.step >= least)

        self._training.wait_until("the next steps", come, pause_s + LONGEST_S)
        return time.monotonic() < over

    def _all_train(self) -> bool:
        said = self._look()
        return len(said) == self._processes and all(p.step > 0 for p in said.values())

    def _look(self) -> dict[int, Progress]:
        """What every replica says, dead ones included."""
        folder = self._training.folder
        found = {n: read_progress(progress_path(folder, n)) for n in range(self._processes)}
        said = {number: progress for number, progress in found.items() if progress is not None}
        self.course.see(said.values())
        return said
