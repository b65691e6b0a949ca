"""Runs of the acceptance drills: set up, started as processes, compared byte by byte."""

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longhaul.core.clocks import RealClock
from longhaul.core.errors import NeedsPerson
from longhaul.core.records import Decision
from longhaul.core.units import Seconds, short_bytes
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.logbook.requests import submit
from longhaul.logbook.run_spec import read_run_spec
from longhaul.run.drill.drilled_run import set_up_run
from longhaul.run.drill.fault import Fault
from longhaul.store.catalogue import catalogue
from longhaul.store.run_differences import differences
from longhaul.supervise.run_process import RunProcess

FOREVER = 10**9
"""The end of a fault that is there for good."""


@dataclass(frozen=True, slots=True)
class NumberFault(Fault):
    """A fault in a run's numbers, of no rank: see `number_faults.py`."""

    draws: tuple[int, int] | None = None
    """In steps that read one of the blocks begin ≤ draw < end: it comes again with the data."""
    made: tuple[int, int] | None = None
    """In the steps first ≤ n < last that the trainer makes, counted from 1. A rollback turns back
    no such count: what is over by then does not come again, nor does a replay see it. What lasts
    for good (`FOREVER`) a replay sees."""
    every: int = 1
    """Of these only each so-manyth, and those right after it:"""
    lasting: int = 1
    """so many in a row."""
    above_lr: float = 0.0
    """While the learning rate is above this, whatever the data."""


Say = Callable[[str], None]
LONGEST_S: Seconds = 600.0
"""Of any wait in a drill, on a machine that does other things as well."""
RECIPE = "drill"
_TESTS = Path(__file__).parents[1]


def start(
    folder: RunFolder,
    *command: str,
    disturbed: bool = False,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> RunProcess:
    """Start `longhaul COMMAND RUN …`; close it when done.

    Args:
        folder: the run.
        command: its name, and what stands behind the run.
        disturbed: with the faults that were laid into the run.
        log: takes its output; that of the run's worker 0 by default.
        environment: variables to add.
    """
    if log is None:
        folder.workers.mkdir(parents=True, exist_ok=True)
        log = folder.workers / "0.log"
    name, *rest = command
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(_TESTS), os.environ.get("PYTHONPATH")))),
        # Rows about nodes have commands; that they are trusted is remembered with the run.
        "LONGHAUL_TRUST": "1",
        "XDG_STATE_HOME": str(folder.path.resolve().parent / "state"),
    }
    return RunProcess(
        folder, (name, str(folder.path.resolve()), *rest), log,
        "drills.process" if disturbed else "longhaul", own | dict(environment or {}),
    )  # fmt: skip


def to_the_end(folder: RunFolder, *command: str, disturbed: bool = False) -> Seconds:
    """Let a command, by default the run's one worker, end by itself; seconds it took.

    Raises:
        NeedsPerson: it did not end well.
    """
    began = time.monotonic()
    with start(folder, *(command or ("worker",)), disturbed=disturbed) as process:
        code = process.wait(LONGEST_S)
        if code != 0:
            raise NeedsPerson(
                f"run {folder.name} of the drill ended with exit code {code}",
                f"the end of {process.log}:\n{process.output[-2000:]}",
            )
    return time.monotonic() - began


def set_up(room: Path, name: str, options: tuple[str, ...], nproc: int = 1) -> RunFolder:
    """A run that has not begun, with a skip and an override waiting to be decided."""
    folder = set_up_run(RECIPE, room, name, nproc=nproc, sets=options)
    recipe = read_run_spec(folder).settings()
    steps = recipe.total_steps() or 0
    blocks = recipe.batch_at(0).sequences * recipe.batch_at(0).sequence_length
    per_step = blocks // recipe.block_length()
    chance = random.Random(recipe.seed)
    begin = (steps // 4 + chance.randrange(10)) * per_step + 1
    lower = {"path": "optim.lr", "value": recipe.optim.lr / 2, "from_step": steps // 3}
    for kind, data in (("set", lower), ("skip", {"begin": begin, "end": begin + 37})):
        submit(folder, kind, data, who="drill", reason="drill", clock=RealClock())
    return folder


def compare(reference: RunFolder, hit: RunFolder, say: Say) -> bool:
    """Whether two runs of `set_up` ended in the same bytes, with the same losses on the way."""
    found = differences(reference, hit)
    for name in found.pieces[:10]:
        say(f"  differs: {name}")
    if found.steps:
        say(f"  steps whose loss or draw differs: {found.steps[:10]}")
    size = sum(checkpoint.size_bytes for checkpoint in catalogue(hit.checkpoints)[-1:])
    for folder in (reference, hit):
        granted = {r.kind for r in read_journal(folder, steps=False) if isinstance(r, Decision)}
        if not {"set", "skip"} <= granted:
            say(f"  {folder.name}: the override or the skip was not granted, so nothing is proven")
            return False
    differ = f"{len(found.pieces)} and {len(found.steps)} differ"
    say(
        f"{found.compared_pieces} pieces of state ({short_bytes(size)}) and "
        f"{found.compared_steps} losses compared: {'byte-identical' if found.none else differ}"
    )
    return found.none
