"""How long it takes to notice, and to go on: a rank is killed, hangs, or computes NaN.

    python -m benchmarks.recovery [--rounds 6] [--recipe quickstart]

Real runs of the recipe at default settings, with 2 processes and with 1, that are hit again and
again at different distances from their last checkpoint. NaN is the loss of one rank in three steps
on end: the updates are held back, and the run goes back. Times run from the blow:

detect    to the supervisor's verdict in the journal (kill, hang), or the pilot's finding (NaN);
recover   to the end of the first step that followed: of the next attempt (kill, hang), after the
          rollback (NaN);
lost      steps made and not kept: those between the state gone back to and the furthest step.

Given are the median and its distribution-free 95 % interval; a bar is met where the whole interval
keeps it. What a save costs the training thread is measured as in `save_stall.py`.
"""

import argparse
import math
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import Bar, missing, write_results
from benchmarks.save_stall import stall

from longhaul.core.errors import LonghaulError
from longhaul.core.records import Decision, Event, Finding, Record, StepRecord
from longhaul.run.drill.drilled_run import MODULE as DRILLED
from longhaul.run.drill.drilled_run import set_up_run
from longhaul.run.drill.fault import parse_fault
from longhaul.run.drill.laid import lay, read_done
from longhaul.supervise.run_process import RunProcess, of_attempt, records

INTERVAL_STEPS = 10
"""Between checkpoints: the recipe's own, 100, would make every restart train for a minute again."""
DEADLINE_S = 300.0
SETTINGS = (
    "train.steps=1000000",
    "optim.schedule.shape='constant'",
    "evaluation.interval_steps=0",
    f"checkpoint.interval_steps={INTERVAL_STEPS}",
)
BARS = {("kill", 2, "recover"): 15.0, ("hang", 2, "detect"): 60.0}
"""Seconds: issue 5, point 3."""
UNITS = {"detect": "s", "recover": "s", "lost": "steps"}


@dataclass(frozen=True)
class Blow:
    """What became of one."""

    detect: float
    recover: float
    lost: float

    def __str__(self) -> str:
        return f"{self.detect:.2f} s, {self.recover:.2f} s, {self.lost:g} steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--recipe", default="quickstart")
    given = parser.parse_args()
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="longhaul-recovery-") as name:
        for processes in (2, 1):
            for fault in ("kill", "hang", "NaN"):
                bars += measured(fault, processes, given.recipe, given.rounds, Path(name))
    bars += stall(f"{given.recipe}, CPU", given.recipe, "cpu", given.rounds)
    write_results("recovery", bars, "make bench-recovery")


def measured(fault: str, processes: int, recipe: str, rounds: int, room: Path) -> list[Bar]:
    title = f"{fault}, {processes} process{'es' * (processes > 1)}"
    print(f"{title}: detect, recover, lost", flush=True)
    blows: list[Blow] = []
    hits = poisoned if fault == "NaN" else partial(struck, fault)
    try:
        for blow in hits(processes, recipe, rounds, room):
            blows.append(blow)
            print(f"  {len(blows)}/{rounds}: {blow}", flush=True)
    except LonghaulError as error:
        print(f"  {error.message}", file=sys.stderr)
        return [
            missing(f"{title}: {what}", error.message, BARS.get((fault, processes, what)))
            for what in UNITS
        ]
    return list(summed_up(title, blows, fault, processes))


def struck(fault: str, processes: int, recipe: str, rounds: int, room: Path) -> Iterator[Blow]:
    """Blow after blow on one run."""
    number = signal.SIGKILL if fault == "kill" else signal.SIGSTOP
    name = f"{fault}-{processes}"
    folder = set_up_run(recipe, room, name, nproc=processes, sets=SETTINGS)
    with RunProcess(folder, ("train", str(folder.path)), room / f"{name}.log") as training:
        resumed = 0
        for attempt in range(1, rounds + 1):
            # Another distance from the last checkpoint each time, over the whole interval.
            apart = INTERVAL_STEPS * (attempt - 1) // rounds + 1
            training.wait_for_step(resumed + INTERVAL_STEPS + apart, DEADLINE_S)
            hit = time.time()
            training.send(number, rank=processes - 1)
            ended = training.wait_for(
                "the verdict", of_attempt(attempt, "attempt-ended"), DEADLINE_S
            )
            first = training.wait_for("the next step", of_attempt(attempt + 1), DEADLINE_S)
            assert isinstance(ended, Event)
            named = ended.data["cause"], ended.data["rank"]
            if named != ("killed" if fault == "kill" else "hang", processes - 1):
                raise LonghaulError(f"cause {named[0]} of rank {named[1]} is not what it was")
            resumed = first.step - 1
            made = [r for r in records(folder) if isinstance(r, StepRecord)]
            reached = max(r.step for r in made if r.attempt == attempt)
            yield Blow(ended.time - hit, first.time - hit, reached - resumed)


def poisoned(processes: int, recipe: str, rounds: int, room: Path) -> Iterator[Blow]:
    """A run for each blow: what is decided after one would be in the way of the next."""
    for number in range(rounds):
        step = INTERVAL_STEPS + 2 + INTERVAL_STEPS * number // rounds
        name = f"poisoned-{processes}-{number}"
        folder = set_up_run(recipe, room, name, nproc=processes, sets=SETTINGS)
        lay(folder, [parse_fault(f"nan@rank{processes - 1}:step{step}-{step + 2}")])
        command = ("train", str(folder.path))
        with RunProcess(folder, command, room / f"{name}.log", module=DRILLED) as training:
            found = training.wait_for("the finding", is_non_finite, DEADLINE_S)
            decided = training.wait_for("the rollback", is_rollback, DEADLINE_S)
            assert isinstance(decided, Decision)
            first = training.wait_for(
                "the next step", partial(is_sound_step, since=decided.time), DEADLINE_S
            )
            hit = read_done(folder)[0].time
            back = decided.data["rollback"]
            yield Blow(found.time - hit, first.time - hit, back["from"] - back["to"])


def is_non_finite(record: Record) -> bool:
    return isinstance(record, Finding) and record.kind == "non-finite"


def is_rollback(record: Record) -> bool:
    return isinstance(record, Decision) and bool(record.data.get("rollback"))


def is_sound_step(record: Record, since: float) -> bool:
    return isinstance(record, StepRecord) and record.time > since and not record.masked


def summed_up(title: str, blows: Sequence[Blow], fault: str, processes: int) -> Iterator[Bar]:
    for what, unit in UNITS.items():
        values = sorted(getattr(blow, what) for blow in blows)
        low, high, sure = median_interval(values)
        bar = BARS.get((fault, processes, what))
        note = f"median of {len(values)}, {sure:.0%} interval {low:.4g} to {high:.4g}"
        yield Bar(f"{title}: {what}", middle(values), unit, bar,
                  None if bar is None else high <= bar, note)  # fmt: skip


def middle(values: Sequence[float]) -> float:
    """The median of sorted values."""
    half = len(values) // 2
    return values[half] if len(values) % 2 else (values[half - 1] + values[half]) / 2


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Low, high and coverage of the tightest interval of order statistics that holds the median
    with at least 95 %; of sorted values. Fewer than 6 values cannot be that sure.
    """
    count, left_out = len(values), 0
    while coverage(count, left_out + 1) >= 0.95:
        left_out += 1
    return values[left_out], values[-1 - left_out], coverage(count, left_out)


def coverage(count: int, left_out: int) -> float:
    """Chance that the median lies within, with so many left out at either end."""
    outside = sum(math.comb(count, k) for k in range(left_out + 1))
    return 1 - 2 * outside / 2**count


if __name__ == "__main__":
    main()
