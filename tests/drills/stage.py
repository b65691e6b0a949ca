"""Where a drill of the incident book's machine rows plays: a run in a folder."""

import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from drills.runs import FOREVER, LONGEST_S, RECIPE, NumberFault, start
from longhaul.core.errors import NeedsPerson
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.drilled_run import set_up_run
from longhaul.run.drill.fault import parse_fault
from longhaul.run.drill.laid import lay
from longhaul.store.run_differences import differences, steps_of
from longhaul.supervise.leftovers import Traces
from longhaul.supervise.run_process import RunProcess
from small_runs import FEW_HELD_OUT

STEPS = 60
INTERVAL_STEPS = 10
BASE = (
    FEW_HELD_OUT,
    "model.width=32", "model.layers=1", "model.context=32", "batch.stages=[]",
    "batch.sequences=8", "batch.micro_sequences=4", f"train.steps={STEPS}",
    f"checkpoint.interval_steps={INTERVAL_STEPS}", "checkpoint.keep_last=8",
    # Where a row is about the disk, nothing in memory may stand in for it.
    "checkpoint.snapshot_interval_steps=0",
    "evaluation.interval_steps=30", "evaluation.tokens=1024",
    # Steps last milliseconds here, and whatever else this machine does makes them longer.
    "diagnose.throughput.slowdown=100",
)  # fmt: skip
"""On top of recipe `drill`, with its dropout: two processes train for two seconds."""
SOON_NOTICED = ("supervise.deadline_s=3", "supervise.start_up_s=600", "supervise.compile_s=600")
"""A step's deadline alone is short: starts wait for a disk and for cores that others use too."""
_FREED_WITHIN_S: Seconds = 10.0
"""What the system gets to give back memory and files of processes that have ended."""
_ROUNDING = 1e-4
"""Relative difference of losses that another order of addition may make in a run this short."""


class Stage:
    """A room's part for one drill. Close it when done: it ends whatever is left.

    Args:
        room: of all drills; prepared text and undisturbed runs are shared in it.
        name: of the drill.
        blinded: settings that take from the run what it ought to answer with.
    """

    def __init__(self, room: Path, name: str, blinded: Sequence[str] = ()) -> None:
        self.room = room.resolve()
        self.folder = RunFolder(self.room / name)
        self.blinded = tuple(blinded)
        self._temporary = self.room / f"{name}.tmp"
        self._traces = Traces(self.folder, self._temporary)

    def set_up(
        self,
        options: Sequence[str],
        processes: int,
        faults: Sequence[str] = (),
        pace_s: Seconds = 0.0,
    ) -> RunFolder:
        """Make the run, not begun, and lay faults; the run.

        Args:
            options: on top of `BASE`.
            processes: workers.
            faults: as on the command line.
            pace_s: that each step takes longer, asleep: what comes from outside needs its time.
        """
        sets = (*BASE, *options, *self.blinded)
        folder = set_up_run(RECIPE, self.room, self.folder.name, nproc=processes, sets=sets)
        self.lay(*faults, pace_s=pace_s)
        return folder

    def lay(self, *faults: str, pace_s: Seconds = 0.0) -> None:
        """Lay faults instead of those that were laid before."""
        slow = [NumberFault("slow-step", strength=str(pace_s), made=(1, FOREVER))] if pace_s else []
        lay(self.folder, [*map(parse_fault, faults), *slow])

    def train(self, *arguments: str) -> RunProcess:
        """Start the run, or go on with it, with the faults that were laid."""
        log, own = self.room / f"{self.folder.name}.log", self._traces.environment
        return start(self.folder, "train", *arguments, disturbed=True, log=log, environment=own)

    def end(self, *arguments: str) -> int:
        """Start the run, or go on with it, and wait for its own end; its exit code."""
        training = self.train(*arguments)
        code = training.wait(LONGEST_S)
        self._traces.let_go()
        return code

    def undisturbed(self, options: Sequence[str], processes: int) -> RunFolder:
        """The same run left alone: made once in this room, whichever drill asks first.

        Raises:
            NeedsPerson: not even that one ended well.
        """
        key = "".join(c if c.isalnum() else "." for c in "-".join((str(processes), *options)))
        folder = RunFolder(self.room / f"undisturbed-{key}"[:200])
        if not folder.exists:
            sets = (*BASE, *options)
            set_up_run(RECIPE, self.room, folder.path.name, nproc=processes, sets=sets)
        log = self.room / f"{folder.path.name}.log"
        with start(folder, "train", log=log) as training:
            code = training.wait(LONGEST_S)
        if code != 0:
            raise NeedsPerson(
                f"the undisturbed run ended with exit code {code}", f"what it said is in {log}"
            )
        return folder

    def apart(self, reference: RunFolder, kept_only: bool = False) -> Iterator[str]:
        """How the run's end, and every step on its way there, differ from another run's.

        Args:
            reference: the other one.
            kept_only: leave out steps that were made again later.
        """
        # But for settings: nodes and stores are none of its numbers.
        found = differences(reference, self.folder, kept_only=kept_only, settings=False)
        if found.pieces:
            some = f"{len(found.pieces)} of {found.compared_pieces}"
            yield f"{some} pieces of state differ: {found.pieces[0]}"
        if found.steps:
            yield f"steps whose loss or draw differs: {found.steps[:10]}"

    def far_from(self, reference: RunFolder) -> Iterator[str]:
        """How every step differs from another run's by more than rounding does."""
        expected = {record.step: record for record in steps_of(reference)}
        for record in steps_of(self.folder):
            other = expected[record.step]
            if record.draw != other.draw or record.sequences != other.sequences:
                yield f"step {record.step} read other data than in the run left alone"
            elif abs(record.loss / other.loss - 1) > _ROUNDING:
                yield f"the loss of step {record.step} is {record.loss}, not {other.loss}"

    def left_behind(self) -> Iterator[str]:
        """What is there still: processes, ports, shared memory, temporary and partial files."""
        deadline = time.monotonic() + _FREED_WITHIN_S
        while found := self._traces.leftovers():
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        yield from (f"left behind: {what}" for what in found)

    def close(self) -> None:
        """End whatever a failed drill has left running."""
        self._traces.close()
        shutil.rmtree(self._temporary, ignore_errors=True)
