"""`make drill-preempt`: a run told to stop at random moments, again and again.

Each time it must save within its grace period, end with 16, and go on without a step lost. A run
by one process takes most of the signals, one by two processes the rest.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from drills.moments import Moment, random_moments, wait_for
from drills.runs import LONGEST_S, Say, compare, set_up, start
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.signals import NOTICES
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.store.catalogue import catalogue
from longhaul.store.run_differences import steps_of
from longhaul.supervise.pipes import STOPS
from longhaul.supervise.run_process import RunProcess

_BY_TWO = 8
"""One signal in so many goes to the run of two processes."""
_LONGEST_RUN_S: Seconds = 1800.0
_MOST_STEPS_LOST = 1
"""The step that is under way when a notice comes."""
_LEAST_STEPS = 300
_STEPS_EACH = 16
"""Steps of a run for each of its signals: a save or an evaluation comes every 15 to 20."""
_STRUCK_WITHIN = 0.75
"""Share of the run in which signals come: the last one must still find what it is meant for."""
_PYTHON_S: Seconds = 0.1
"""An interpreter that is still starting hears nothing, and dies of the signal itself."""
_LONGEST_REPEAT_S: Seconds = 0.4
"""A second notice comes within so long of the first: while it is being obeyed."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A notice, as a scheduler gives it."""

    moment: Moment
    number: signal.Signals
    everyone: bool
    """To the workers too, as where a scheduler signals all processes of a job."""
    again_after_s: Seconds | None
    """The same once more while the first is being obeyed; None: once."""

    @property
    def phase(self) -> str:
        """What the run was doing, and whether it was ending already at the last signal."""
        return self.moment.phase if self.again_after_s is None else "ending"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a strike."""

    come: bool
    """The moment that it was meant for came."""
    exit_code: int
    reached: int
    """Furthest step in the journal, or that a rank spoke of."""
    saved: int
    """Step of the newest checkpoint."""

    @property
    def lost(self) -> int:
        """Steps that must be made again."""
        return max(0, self.reached - self.saved)

    @property
    def fine(self) -> bool:
        """As promised: exit 16, and at most one step lost."""
        return self.exit_code == ExitCode.START_AGAIN and self.lost <= _MOST_STEPS_LOST


def drill_preempt(
    signals: int, seed: int, room: Path, say: Say, options: Sequence[str] = ()
) -> bool:
    """Run the drill; True if every signal was obeyed and both runs ended in the right bytes.

    Args:
        signals: how many.
        seed: of their moments, kinds and targets.
        room: a folder for the runs.
        say: takes the story.
        options: settings of the recipe, `path=value`.
    """
    began = time.monotonic()
    room.mkdir(parents=True, exist_ok=True)
    by_two = signals // _BY_TWO
    told: list[tuple[Strike, Outcome]] = []
    same = True
    for name, count, processes in (("one", signals - by_two, 1), ("two", by_two, 2)):
        if count == 0:
            continue
        asked = (f"train.steps={max(_LEAST_STEPS, _STEPS_EACH * count)}", *options)
        reference = set_up(room, f"undisturbed-{name}", asked, processes)
        start_up_s = _to_the_end(reference)
        struck = set_up(room, f"struck-{name}", asked, processes)
        steps = _steps(reference)
        for strike in strikes(count, steps, start_up_s, seed + processes):
            outcome = _strike(strike, struck)
            told.append((strike, outcome))
            say(_in_words(len(told), processes, strike, outcome))
        _to_the_end(struck)
        same &= compare(reference, struck, say)
    return _verdict(told, same, time.monotonic() - began, say)


def strikes(count: int, steps: int, start_up_s: Seconds, seed: int) -> list[Strike]:
    """`count` strikes over a run of `steps`: every phase, every signal, from a seed."""
    chance = random.Random(seed)
    moments = random_moments(count, round(steps * _STRUCK_WITHIN), start_up_s - _PYTHON_S, seed)
    made = []
    for moment in moments:
        if moment.phase == "start-up":
            moment = Moment("start-up", moment.from_step, moment.delay_s + _PYTHON_S)
        again = moment.phase == "step" and chance.random() < 0.5
        repeat_s = chance.random() * _LONGEST_REPEAT_S if again else None
        made.append(Strike(moment, chance.choice(NOTICES), chance.random() < 0.25, repeat_s))
    return made


def _strike(strike: Strike, folder: RunFolder) -> Outcome:
    with start(folder, "train", log=folder.path / "said.log") as training:
        come = wait_for(strike.moment, folder, training, LONGEST_S)
        _send(strike, training)
        if strike.again_after_s is not None:
            time.sleep(strike.again_after_s)
            _send(strike, training)
        code = training.wait(LONGEST_S)
        reached = max(_steps(folder), training.step())
    there = catalogue(folder.checkpoints)
    return Outcome(come, code, reached, there[-1].step if there else 0)


def _send(strike: Strike, training: RunProcess) -> None:
    assert strike.number in STOPS
    pids = [training.pid, *(training.ranks().values() if strike.everyone else ())]
    for pid in pids:
        if training.running:
            with suppress(ProcessLookupError):
                os.kill(pid, strike.number)


def _to_the_end(folder: RunFolder) -> Seconds:
    """Let the run end by itself; seconds to its first step."""
    began = time.monotonic()
    with start(folder, "train", log=folder.path / "said.log") as training:
        training.wait_until("the first step", lambda: _steps(folder) > 0, LONGEST_S)
        start_up_s = time.monotonic() - began
        code = training.wait(_LONGEST_RUN_S)
        if code != ExitCode.FINISHED:
            raise NeedsPerson(
                f"run {folder.name} of the drill ended with exit code {code}", training.output
            )
    return start_up_s


def _steps(folder: RunFolder) -> int:
    """Furthest step in a run's journal."""
    return max((record.step for record in steps_of(folder)), default=0)


def _in_words(number: int, processes: int, strike: Strike, outcome: Outcome) -> str:
    when = f"in {strike.phase}" if outcome.come else f"meant for {strike.phase}, which did not come"
    whom = "everyone" if strike.everyone else "the supervisor"
    return (
        f"signal {number:>3}: {strike.number.name} to {whom} of {processes}, {when}; exit "
        f"{outcome.exit_code}, step {outcome.reached} reached, {outcome.saved} saved"
        + ("" if outcome.fine else "  ← NOT AS PROMISED")
    )


def _verdict(
    told: Sequence[tuple[Strike, Outcome]], same: bool, seconds: Seconds, say: Say
) -> bool:
    hit = Counter(strike.phase for strike, outcome in told if outcome.come)
    codes = Counter(outcome.exit_code for _, outcome in told)
    lost = Counter(outcome.lost for _, outcome in told)
    say(f"phases hit: {_counted(hit)}")
    say(f"exit codes: {_counted(codes)}")
    say(f"steps lost: {_counted(lost)}")
    fine = same and all(outcome.come and outcome.fine for _, outcome in told)
    say(f"{len(told)} signals, {seconds:.0f} s: {'PASSED' if fine else 'FAILED'}")
    return fine


def _counted(what: "Counter[str] | Counter[int]") -> str:
    return ", ".join(f"{name} ({count} times)" for name, count in what.most_common())
