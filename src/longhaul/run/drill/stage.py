"""Where one drill of the incident book's machine rows plays: a run in a room, and what is left.

Enters: a room, settings, faults. Leaves: a run that is started and hit; the same run left alone, to
compare with; sentences about what the drill has left behind.
Never knows: what a drill expects.
"""

import json
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from longhaul.core.errors import NeedsPerson
from longhaul.core.records import StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.run.drill.leftovers import MARK, end_all, leftovers, let_go, shared_memory
from longhaul.run.drill.recipe import MODULE, set_up_run
from longhaul.run.drill.resume import final_state
from longhaul.run.drill.training_process import Training
from longhaul.supervise.faults.machines import parse_fault
from longhaul.supervise.faults.numbers import FOREVER, Fault, lay

LONGEST_S: Seconds = 600.0
"""Of any wait in a drill, on a machine that does other things as well."""
STEPS = 60
INTERVAL_STEPS = 10
BASE = (
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
_RECIPE = "drill"
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
        self._mark = secrets.token_hex(8)
        self._segments = shared_memory()
        self._temporary = self.room / f"{name}.tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)

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
        folder = set_up_run(_RECIPE, self.room, self.folder.name, nproc=processes, sets=sets)
        self.lay(*faults, pace_s=pace_s)
        return folder

    def lay(self, *faults: str, pace_s: Seconds = 0.0) -> None:
        """Lay faults instead of those that were laid before."""
        slow = [Fault("slow-step", pace_s, made=(1, FOREVER))] if pace_s else []
        lay(self.folder, slow, machine=[parse_fault(fault) for fault in faults])

    def train(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Training:
        """Start the run, or go on with it, with the faults that were laid."""
        own = {MARK: self._mark, "TMPDIR": str(self._temporary)}
        return Training(
            self.folder,
            ("train", str(self.folder.path), *arguments),
            self.room / f"{self.folder.name}.log",
            module=MODULE,
            environment=own | dict(environment or {}),
        )

    def end(self, *arguments: str) -> int:
        """Start the run, or go on with it, and wait for its own end; its exit code."""
        training = self.train(*arguments)
        code = training.wait(LONGEST_S)
        let_go(self._mark)
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
            set_up_run(_RECIPE, self.room, folder.path.name, nproc=processes, sets=sets)
        log = self.room / f"{folder.path.name}.log"
        with Training(folder, ("train", str(folder.path)), log) as training:
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
        expected, found = _state(reference), _state(self.folder)
        names = expected.keys() | found.keys()
        if wrong := sorted(name for name in names if expected.get(name) != found.get(name)):
            yield f"{len(wrong)} of {len(names)} pieces of state differ: {wrong[0]}"
        losses = {record.step: (record.loss, record.draw) for record in _steps(reference)}
        own = [(record.step, (record.loss, record.draw)) for record in _steps(self.folder)]
        own = list(dict(own).items()) if kept_only else own
        if strange := sorted({step for step, made in own if losses.get(step) != made}):
            yield f"steps whose loss or draw differs: {strange[:10]}"

    def far_from(self, reference: RunFolder) -> Iterator[str]:
        """How every step differs from another run's by more than rounding does."""
        expected = {record.step: record for record in _steps(reference)}
        for record in _steps(self.folder):
            other = expected[record.step]
            if record.draw != other.draw or record.sequences != other.sequences:
                yield f"step {record.step} read other data than in the run left alone"
            elif abs(record.loss / other.loss - 1) > _ROUNDING:
                yield f"the loss of step {record.step} is {record.loss}, not {other.loss}"

    def left_behind(self) -> Iterator[str]:
        """What is there still: processes, ports, shared memory, temporary and partial files."""
        deadline = time.monotonic() + _FREED_WITHIN_S
        while found := leftovers(self._mark, self.folder, self._temporary, self._segments):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        yield from (f"left behind: {what}" for what in found)

    def close(self) -> None:
        """End whatever a failed drill has left running."""
        end_all(self._mark)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _state(folder: RunFolder) -> dict[str, str]:
    """Every piece of the last state, but for settings: nodes and stores are none of its numbers."""
    state = final_state(folder)
    progress = json.loads(state["fact progress"])
    del progress["settings"]
    return state | {"fact progress": json.dumps(progress)}


def _steps(folder: RunFolder) -> Iterator[StepRecord]:
    return (r for r in read_journal(folder, events=False) if isinstance(r, StepRecord))
