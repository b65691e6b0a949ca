"""`make drills-numbers`: N1 to N15 and H1 to H7 of the incident book, one after the other; and one
whose worker is killed between a decision and the next checkpoint.

Each is a real `longhaul train` in a process of its own, with a fault injected from outside what
judges it. Its journal, once it has ended, must tell the right story.
"""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from drills.of_numbers import BASE, Drill, crash, harmless, numbers, texts
from drills.runs import LONGEST_S, RECIPE, NumberFault, Say, start
from drills.story import Timeline, complaints, seen
from drills.table import Result, by_name, row, run_all
from longhaul.core.clocks import RealClock
from longhaul.core.machine import differences
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.requests import submit
from longhaul.logbook.segments import read_segments
from longhaul.run.drill.drilled_run import set_up_run
from longhaul.run.drill.laid import lay

_WIDTHS = (5, 58, 32, 48, 18, 7, 6)
"""Of the table's columns, in letters."""
_LOOK_EVERY_S: Seconds = 0.02
_VARIABLE = "MKL_CBWR"
"""Chooses the order in which Intel's library adds up, and with it the last bits."""


def chosen(names: Sequence[str]) -> tuple[Drill, ...]:
    """The drills with these names; all if there are none.

    Raises:
        UsageError: there is no such drill.
    """
    return by_name((*numbers(), *harmless(), crash()), names)


def drill_numbers(names: Sequence[str], room: Path, say: Say, *, blind: bool = False) -> bool:
    """Run drills and print what became of each; True if all are as the incident book says.

    Args:
        names: of the drills; all if there are none.
        room: folder for the runs.
        say: prints a line.
        blind: run them with a judgement that finds nothing, to see that they notice.
    """
    drills = chosen(names)
    say(row(("drill", "what is injected", "found", "done", "ended", "seconds", ""), _WIDTHS))
    return run_all(drills, lambda drill: run_drill(drill, room, blind=blind), told, say)


def run_drill(drill: Drill, room: Path, *, blind: bool = False) -> Result[Drill]:
    """Run one drill to its end and judge its journal."""
    folder = set_up(drill, room)
    lay(folder, (*drill.faults, NumberFault("blind")) if blind else drill.faults)
    began = time.monotonic()
    codes, more = _PLAYS[drill.play](folder, drill)
    story = Timeline(folder, codes, time.monotonic() - began)
    wrong = (*complaints(story, drill.expected), *more(story))
    return Result(drill, story, wrong, story.seconds)


def set_up(drill: Drill, room: Path) -> RunFolder:
    """The run of a drill, not begun."""
    room.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        if not (room / name).exists():
            (room / name).write_text(text, encoding="utf-8")
    options = tuple(option.replace("{room}", str(room.resolve())) for option in drill.options)
    return set_up_run(RECIPE, room, drill.name, sets=BASE + options)


def told(result: Result[Drill]) -> str:
    """A drill as a row of the table."""
    drill, story = result.drill, result.story
    assert story is not None
    finding = seen(story, drill.expected)
    found = f"{finding.kind} {finding.first_step}→{finding.step}" if finding else "–"
    actions = ("+".join(decision.data["actions"]) for decision in story.decisions)
    several = ((word, len(list(same))) for word, same in groupby(actions))
    done = ", ".join(f"{word} ×{n}" if n > 1 else word for word, n in several) or "–"
    ended = f"{story.codes[-1]} at {story.last_step}"
    if story.loss == story.loss:
        ended += f", {story.loss:.2f}"
    seconds = f"{story.seconds:.1f}"
    cells = (drill.name, drill.injected, found, done, ended, seconds, result.verdict)
    return row(cells, _WIDTHS)


Played = tuple[tuple[int, ...], Callable[[Timeline], Iterator[str]]]
"""Exit codes, and what else the story must hold."""


def _end(folder: RunFolder, *command: str, **environment: str) -> int:
    """Exit code of a command, by default of the run's one worker."""
    with start(
        folder, *(command or ("worker",)), disturbed=True, environment=environment
    ) as process:
        return process.wait(LONGEST_S)


def _once(folder: RunFolder, drill: Drill) -> Played:
    return (_end(folder),), _nothing


def _nothing(story: Timeline) -> Iterator[str]:
    return iter(())


def _set_betas(folder: RunFolder, drill: Drill) -> Played:
    """Somebody swaps the optimizer and sets a beta of the running job."""
    _ask(
        folder, ("optim.name", "sgdw", 40), ("optim.name", "adamw", 80), ("optim.beta2", 0.99, 120)
    )

    def check(story: Timeline) -> Iterator[str]:
        if story.last_step != 120:
            yield f"it went on to step {story.last_step} with settings nobody asked for"
        if "beta2: live 0.95, asked for 0.99" not in story.log:
            yield "nobody is told which setting is live"
        swaps = [event.data["new"] for event in story.events("optimizer-swapped")]
        if swaps != ["sgdw", "adamw"]:
            yield f"the optimizer was swapped to {swaps}"

    return (_end(folder),), check


def _restart_elsewhere(folder: RunFolder, drill: Drill) -> Played:
    """A run is stopped, and goes on under another environment."""
    _ask(folder, ("train.steps", 150, 0))
    first = _end(folder)
    _ask(folder, ("train.steps", 300, 0))
    second = _end(folder, **{_VARIABLE: "COMPATIBLE"})

    def check(story: Timeline) -> Iterator[str]:
        segments = read_segments(folder)
        before, after = segments[0], segments[-1]
        changed = differences(before.fingerprint, after.fingerprint)
        path = f"environment.{_VARIABLE}"
        if changed.get(path) != (None, "COMPATIBLE"):
            yield "the segments' fingerprints do not differ by it"
        if path not in story.log or "machine or software differ" not in story.log:
            yield "nobody is told"
        first_step = next(r for r in story.steps if r.attempt == after.attempt)
        if after.opened > first_step.time:
            yield "it is recorded after the first step only"

    return (first, second), check


def _diagnose(folder: RunFolder, drill: Drill) -> Played:
    """The ladder of causes compares the step as trained with plain float32, unsharded."""
    code = _end(folder)
    asked = _end(folder, "diagnose", "--step", "20")

    def check(story: Timeline) -> Iterator[str]:
        if "cause: parallel or kernel bug" not in story.log:
            yield "the cause is not named"

    return (asked, code), check


def _killed(folder: RunFolder, drill: Drill) -> Played:
    """SIGKILL before the checkpoint that would hold what was decided."""
    with start(folder, "worker", disturbed=True) as worker:  # which is killed when it is closed
        while worker.running and not load_ledger(folder)[0].recoveries:
            time.sleep(_LOOK_EVERY_S)
    before, _ = load_ledger(folder)

    def check(story: Timeline) -> Iterator[str]:
        after, _ = load_ledger(folder)
        if not before.recoveries or after.recoveries[: len(before.recoveries)] != before.recoveries:
            yield "a decision, or what was spent on it, is forgotten"
        elif story.events("checkpoint") and story.events("attempt-started")[1:]:
            again = story.events("attempt-started")[1]
            lowered = before.recoveries[0].settings["optim.lr"]
            if again.data["live"]["matrix.lr"] != lowered:
                yield f"the learning rate is not the decided one, {lowered:g}"
            if again.step > (before.recoveries[0].to_step or 0):
                yield f"it went on from step {again.step}, which was rolled back"

    return (-signal.SIGKILL, _end(folder)), check


_PLAYS: dict[str, Callable[[RunFolder, Drill], Played]] = {
    "once": _once,
    "set-betas": _set_betas,
    "restart-elsewhere": _restart_elsewhere,
    "diagnose": _diagnose,
    "killed": _killed,
}


def _ask(folder: RunFolder, *changes: tuple[str, object, int]) -> None:
    """Ask for (setting, value, step from which it holds), in this order."""
    for path, value, from_step in changes:
        data = {"path": path, "value": value, "from_step": from_step}
        submit(folder, "set", data, who="drill", reason="drill", clock=RealClock())
