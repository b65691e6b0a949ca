"""Moments at which a drill strikes, and waiting for them."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from longhaul.core.records import Event, RecordError, StepRecord, from_line
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import journal_files

Phase = Literal["start-up", "step", "save", "evaluation"]
PHASES: tuple[Phase, ...] = ("start-up", "step", "save", "evaluation")
_EVENT_OF: dict[Phase, str] = {"save": "save-started", "evaluation": "evaluation-started"}
_LOOK_EVERY_S = 0.001


@dataclass(frozen=True, slots=True)
class Moment:
    """When to strike."""

    phase: Phase
    from_step: int
    """Not before the run has made this many steps; for `start-up` it does not count."""
    delay_s: Seconds
    """After the process was started, or after the phase was seen to begin."""


def random_moments(count: int, steps: int, start_up_s: Seconds, seed: int) -> list[Moment]:
    """`count` moments over a run of `steps`, every phase equally often, in random order.

    Args:
        count: how many.
        steps: of the whole run.
        start_up_s: how long a start takes, so that strikes fall anywhere in it.
        seed: the same seed gives the same moments.
    """
    chance = random.Random(seed)
    phases = [PHASES[number % len(PHASES)] for number in range(count)]
    chance.shuffle(phases)
    moments = []
    for number, phase in enumerate(phases):
        # Later strikes come later in the run, so that each attempt makes some way.
        from_step = round((number + chance.random()) / (count + 1) * steps)
        longest = start_up_s if phase == "start-up" else 0.04
        moments.append(Moment(phase, from_step, chance.random() * longest))
    return moments


class Runs(Protocol):
    """What can be struck."""

    @property
    def running(self) -> bool:
        """It has not ended yet."""
        ...


def wait_for(moment: Moment, folder: RunFolder, worker: Runs, most_s: Seconds) -> bool:
    """Wait until the moment has come; False if the worker ended before, or time ran out.

    A start-up that is over sooner than was thought is struck at its end: how long it takes depends
    on what else the machine does, and a run that is left alone for longer comes to its end.
    """
    began, tail = time.monotonic(), _Tail(folder)
    if moment.phase == "start-up":
        while time.monotonic() < began + moment.delay_s and worker.running:
            if any(isinstance(record, StepRecord) for record in tail.new()):
                break
            time.sleep(_LOOK_EVERY_S)
        return worker.running
    while not any(_begins(record, moment) for record in tail.new()):
        if not worker.running or time.monotonic() > began + most_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    time.sleep(moment.delay_s)
    return worker.running


def _begins(record: StepRecord | Event, moment: Moment) -> bool:
    if record.step < moment.from_step:
        return False
    if moment.phase == "step":
        return isinstance(record, StepRecord)
    return isinstance(record, Event) and record.kind == _EVENT_OF[moment.phase]


class _Tail:
    """What a journal gains from now on."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._read: dict[str, int] = {
            file.name: (folder.journal / file.name).stat().st_size
            for file in journal_files(folder.journal)
        }

    def new(self) -> Iterator[StepRecord | Event]:
        """Records that came since the last call."""
        for file in journal_files(self._folder.journal):
            path = self._folder.journal / file.name
            begin = self._read.get(file.name, 0)
            if path.stat().st_size <= begin:
                continue
            with path.open("rb") as lines:
                lines.seek(begin)
                added = lines.read()
            whole = added[: added.rfind(b"\n") + 1]
            self._read[file.name] = begin + len(whole)
            for line in whole.splitlines():
                try:
                    record = from_line(line)
                except RecordError:
                    continue
                if isinstance(record, StepRecord | Event):
                    yield record
