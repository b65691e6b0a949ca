"""`make drills-machines`: M1 to M18 and S1 to S7 of the incident book, one after the other.

Each is a real `longhaul train` whose processes, nodes or storage are hit while it trains. It must
end by itself, at the right step, with the right story in its journal; in the very bytes of the
same run left alone where nothing befell its numbers; and leave nothing behind.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

from drills.machine_drill import MachineDrill, failures
from drills.of_nodes import nodes
from drills.of_processes import processes
from drills.of_storage import storage
from drills.runs import Say
from drills.stage import Stage
from drills.story import Timeline
from drills.table import Result, by_name, row, run_all
from longhaul.core.clocks import time_spent, wall_seconds
from longhaul.core.errors import LonghaulError
from longhaul.core.records import Decision, Event
from longhaul.store.catalogue import catalogue

_WIDTHS = (4, 64, 13, 78, 7, 6)
"""Of the table's columns, in letters."""


def chosen(names: Sequence[str]) -> tuple[MachineDrill, ...]:
    """The drills with these names; all if there are none.

    Raises:
        UsageError: there is no such drill.
    """
    drills = (*processes(), *nodes(), *storage())
    return by_name(sorted(drills, key=lambda drill: (drill.name[0], int(drill.name[1:]))), names)


def drill_machines(names: Sequence[str], room: Path, say: Say, *, blind: bool = False) -> bool:
    """Run drills and print what became of each; True if all are as the incident book says.

    Args:
        names: of the drills; all if there are none.
        room: folder for the runs.
        say: prints a line.
        blind: take from each run what it ought to answer with, to see that its drill notices.
    """
    drills = chosen(names)
    say(row(("", "what happens", "ended", "story", "seconds", ""), _WIDTHS))
    return run_all(drills, lambda drill: run_drill(drill, room, blind=blind), told, say)


def run_drill(drill: MachineDrill, room: Path, *, blind: bool = False) -> Result[MachineDrill]:
    """Run one drill to its end and judge what it left."""
    began = time.monotonic()
    story, wrong = None, []
    with closing(Stage(room, drill.name, drill.blinded if blind else ())) as stage:
        try:
            codes, more = drill.play(stage, drill)
            story = Timeline(stage.folder, codes, time.monotonic() - began)
            wrong += [*complaints(stage, drill, story), *stage.left_behind()]
            if story.steps or not drill.codes:
                wrong += more(story)
        except LonghaulError as error:
            wrong.append(str(error))
    return Result(drill, story, tuple(wrong), time.monotonic() - began)


def complaints(stage: Stage, drill: MachineDrill, story: Timeline) -> Iterator[str]:
    """What every drill is asked for."""
    if story.codes != drill.codes:
        yield f"exit codes {story.codes}, not {drill.codes}"
    if not story.steps:
        if drill.codes:
            yield "no step was made"
        return
    found = tuple((event.data["cause"], event.data["rank"]) for event in failures(story))
    if found != drill.failures:
        yield f"failures {found}, not {drill.failures}"
    if drill.from_newest:
        yield from _from_the_newest(story)
    spent, wall = sum(time_spent(story.records).values()), wall_seconds(story.records)
    if abs(spent - wall) > 0.02 * wall + 0.2:
        yield f"{spent:.2f} s are booked of {wall:.2f} s"
    if story.codes[-1] == 0:
        there = [checkpoint.step for checkpoint in catalogue(story.folder.checkpoints)]
        if story.last_step != drill.steps or drill.steps not in there:
            yield f"it ended at step {story.last_step} with checkpoints {there}, not {drill.steps}"
            return
        reference = stage.undisturbed(drill.options, drill.processes)
        if drill.same == "losses":
            yield from stage.far_from(reference)
        else:
            yield from stage.apart(reference, kept_only=drill.same == "kept bits")


def _from_the_newest(story: Timeline) -> Iterator[str]:
    """Each attempt must go on from the newest sound checkpoint that the one before had."""
    verified: set[int] = set()
    for record in story.records:
        if isinstance(record, Decision) and record.kind == "checkpoint-health":
            step, health = record.data["checkpoint"], record.data["health"]
            if health == "poisoned":
                verified.discard(step)
            elif health == "verified":
                verified.add(step)
        elif (
            isinstance(record, Event)
            and (record.kind, record.attempt > 1) == ("attempt-started", True)
            and record.step < max(verified, default=0)
        ):
            yield f"attempt {record.attempt} begins at {record.step}, not at {max(verified)}"


def told(result: Result[MachineDrill]) -> str:
    """A drill as a row of the table."""
    drill, story = result.drill, result.story
    ended = tale = "–"
    if story is not None and (story.steps or not drill.codes):
        codes = [f"{code} ×{n}" if n > 1 else f"{code}" for code, n in _runs(story.codes)]
        ended = f"{', '.join(codes)} at {story.last_step}" if codes else "–"
        tale = drill.tale(story)
    cells = (drill.name, drill.happened, ended, tale, f"{result.seconds:.0f}", result.verdict)
    return row(cells, _WIDTHS)


def _runs(codes: Sequence[int]) -> Iterator[tuple[int, int]]:
    return ((code, len(list(same))) for code, same in groupby(codes))
