"""A drilled run: a real `longhaul train` with all its processes, in a folder of its own, with
faults, started again as a scheduler would; and what it is worth beside its baseline without them.
"""

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from longhaul.config.load import load_recipe
from longhaul.core.clocks import RealClock, goodput, time_spent
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.events import EventKind
from longhaul.core.output import print_error, time_rows
from longhaul.core.records import Event, Record
from longhaul.core.units import Nats, Seconds, short_seconds
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec, resolve_spec, write_run_spec
from longhaul.run.drill.fault import Fault, check_faults
from longhaul.run.drill.incidents import Incident, incidents, must_be_noticed
from longhaul.run.drill.laid import Done, lay, read_done
from longhaul.store.run_differences import Differences, differences
from longhaul.supervise.causes import last_message
from longhaul.supervise.leftovers import Traces
from longhaul.supervise.run_process import RunProcess
from longhaul.supervise.trust import refuse_untrusted

MODULE = "longhaul.cli.disturbed"
_LONGEST_RUN_S: Seconds = 3600.0
_LOOK_EVERY_S: Seconds = 0.05
_SCHEDULED_AGAIN = (int(ExitCode.START_AGAIN), -int(signal.SIGKILL))
"""Ends of the command after which a scheduler starts it again: asked for, or the machine's."""
MOST = 1.02
"""Largest validation loss after faults in numbers, as a multiple of the undisturbed run's."""
_JUDGED = ("slow", "bitflip-weight", "bitflip-grad")
"""Faults that act on what is judged of ranks."""
_WIDTHS = (34, 10, 10, 5, 11)


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
    """Of its commands."""

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
        """The faults that were injected."""
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
    parent: Path,
    name: str,
    *,
    nproc: int = 1,
    sets: Sequence[str] = (),
    data: str | None = None,
    trust: bool = False,
) -> RunFolder:
    """A run in folder `parent`, not begun. So that a drill keeps away from the user's own store and
    ledger of nodes, these lie there too, unless they are among `sets`. RecipeError if the recipe
    or what is set is wrong; UsageError if it names commands that are not trusted, nor by `trust`.
    """
    sets = (f"machine.processes={nproc}", *sets)
    given = load_recipe(recipe, sets, data).recipe
    typed = {option.partition("=")[0].strip() for option in sets}
    beside = {
        "checkpoint.remote": (given.checkpoint.remote, "remote"),
        "supervise.node_ledger": (given.supervise.node_ledger, "nodes"),
    }
    own = tuple(
        f"{path}={str(parent.resolve() / place)!r}"
        for path, (value, place) in beside.items()
        if value and path not in typed
    )
    spec = resolve_spec(recipe, (*own, *sets), data, parent / "prepared")
    folder = RunFolder(parent / name)
    # The run is started by its folder, which is trusted from here on as its recipe is.
    refuse_untrusted(folder, spec, recipe, sets, trust, print_error)
    parent.mkdir(parents=True, exist_ok=True)
    write_run_spec(create_run(folder.path, RealClock()), spec)
    return folder


def drilled_run(
    folder: RunFolder,
    faults: Sequence[Fault],
    *,
    most_s: Seconds = _LONGEST_RUN_S,
    meanwhile: Callable[[], object] = lambda: None,
) -> DrilledRun:
    """Train a run that was set up to its end, with faults. What stands for the world around it lies
    beside it. `meanwhile` is called many times a second; after `most_s` what is left is killed.
    UsageError if the run cannot have such a fault: nothing was started; NeedsPerson if it did not
    end in time.
    """
    check_faults(faults, read_run_spec(folder).settings())
    lay(folder, faults)
    output = folder.path.with_name(f"{folder.name}.log")
    temporary = folder.path.with_name(f"{folder.name}.tmp")
    traces, began = Traces(folder, temporary), time.monotonic()
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
    try:
        while training.running:
            if time.monotonic() > deadline:
                raise NeedsPerson(
                    f"run {training.folder.name} of the drill has not ended by itself in time",
                    f"its output is in {training.log}",
                )
            meanwhile()
            time.sleep(_LOOK_EVERY_S)
    except BaseException:
        training.close()
        raise
    return training.wait(0.0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one drilled run."""

    run: DrilledRun
    baseline: DrilledRun
    exact: bool
    """It had to end in the very bytes of its baseline."""
    found: Differences | None
    """Where they were compared, which takes two finished runs."""
    complaints: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Nothing is to be complained of."""
        return not self.complaints

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield _row("fault", "noticed", "went on", "lost", "by", "story")
        for one in self.run.incidents:
            times = ("–" if s is None else short_seconds(s) for s in (one.detect_s, one.recover_s))
            yield _row(one.fault, *times, str(one.steps_lost), one.by or "–", one.story)
        wall = short_seconds(sum(self.run.spent.values()))
        spent = ", ".join(f"{bucket} {s}" for bucket, s, _ in time_rows(self.run.spent))
        yield f"goodput {self.run.goodput:.1%} of {wall}: {spent}"
        yield self._end_in_words()
        left = "; ".join(self.run.leftovers) or "no process, port, shared memory, temporary file"
        yield f"left behind: {left}"
        yield from (f"  {complaint}" for complaint in self.complaints)

    def as_data(self) -> dict[str, Any]:
        """For JSON."""
        run = self.run
        return {
            "run": str(run.folder.path),
            "exit_codes": list(run.exit_codes),
            "seconds": round(run.seconds, 3),
            "goodput": _finite(run.goodput),
            "spent_s": run.spent,
            "incidents": [asdict(incident) for incident in run.incidents],
            "loss": _finite(run.loss),
            "loss_alone": _finite(self.baseline.loss),
            "byte_identical": None if self.found is None else self.found.none,
            "leftovers": list(run.leftovers),
            "complaints": list(self.complaints),
            "passed": self.passed,
        }

    def _end_in_words(self) -> str:
        if self.found is None:
            return "it did not finish: there is nothing to compare"
        loss = f"validation loss {self.run.loss:.4f}, {self.baseline.loss:.4f} without faults"
        if not self.exact:
            more = self.run.loss / self.baseline.loss - 1
            return f"{loss} ({more:+.2%}, at most {MOST - 1:+.0%})"
        pieces, steps = self.found.compared_pieces, self.found.compared_steps
        how = "are byte-identical" if self.found.none else "DIFFER"
        return f"{loss}; {pieces} pieces of state and {steps} losses {how}"


def judge_run(run: DrilledRun, baseline: DrilledRun, faults: Sequence[Fault]) -> Verdict:
    """Compare a run with these faults with a baseline of the same number of steps."""
    undone = {incident.fault for incident in run.incidents if incident.undone}
    mended = all(f.known.harm != "numbers" or (f.once and str(f) in undone) for f in faults)
    # Fewer ranks add up in another order, and draw other masks.
    layouts = {event.data["layout"] for event in run.events(EventKind.ATTEMPT_BEGAN)}
    exact = mended and len(layouts) <= 1
    finished = run.exit_code == 0 and baseline.exit_code == 0
    # Wrong numbers that were undone have been in the journal for a while.
    found = differences(baseline.folder, run.folder, kept_only=bool(undone)) if finished else None
    wrong = (*_ended(run, baseline, exact, found), *_came(run, faults), *run.leftovers)
    return Verdict(run, baseline, exact, found, wrong)


def _ended(
    run: DrilledRun, baseline: DrilledRun, exact: bool, found: Differences | None
) -> Iterator[str]:
    if run.exit_code != 0:
        why = last_message(run.output.read_text(errors="replace"))
        yield f"it ended with exit code {run.exit_code}: {why} (all its output is in {run.output})"
    if found is None:
        return
    if exact and not found.none:
        named = ", ".join([*found.pieces[:3], *(f"step {step}" for step in found.steps[:3])])
        yield f"it ended in other bytes than its baseline: {named}"
    if not exact and not run.loss <= MOST * baseline.loss:
        yield f"its loss is {run.loss / baseline.loss:.4f} of the other's, more than {MOST:g}"


def _came(run: DrilledRun, faults: Sequence[Fault]) -> Iterator[str]:
    came = Counter(done.fault for done in run.done)
    for fault in faults:
        if not came[str(fault)]:
            yield f"{fault} did not come about"
    yield from _accused(run, faults)
    for incident in run.incidents:
        noticed = incident.detect_s is not None
        if not noticed and must_be_noticed(incident, run.records):
            yield f"{incident.fault}: nobody noticed"
        if noticed and incident.recover_s is None and run.exit_code == 0:
            yield f"{incident.fault}: nothing went on after it"


def _accused(run: DrilledRun, faults: Sequence[Fault]) -> Iterator[str]:
    """Ranks that were named as wrong although no fault acted on them."""
    if not any(fault.kind in _JUDGED for fault in faults):
        return
    guilty = {(done.attempt, done.rank) for done in run.done}
    for verdict in run.events(EventKind.MACHINE_VERDICT):
        for rank in verdict.data["ranks"]:
            # What a flipped weight has done to a rank is there until the run goes back.
            if not any(rank == own and attempt <= verdict.attempt for attempt, own in guilty):
                yield f"rank {rank} was named, and no fault acted on it: {verdict.data['reason']}"


def _finite(value: float) -> float | None:
    """JSON has no word for what is not a number."""
    return value if math.isfinite(value) else None


def _row(*cells: str) -> str:
    """One line of the table; what is too long for its column pushes the others on."""
    padded = (cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=False))
    return " ".join((*padded, cells[-1])).rstrip()
