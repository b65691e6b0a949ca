"""The newcomer's run, measured: whole time, start-up, waiting for data, saving.

    python -m benchmarks.quickstart [--pairs 1]

Runs recipe `quickstart` in a temporary folder, then starts another run on the prepared text. Beside
it, whole processes in turn, runs the recipe as it was while it had AdamW: the loss that it ended
with must be reached in two thirds of its time.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import Bar, at_most, figure, interleaved, paired_ratio, write_results

from longhaul.core.clocks import time_spent, wall_seconds
from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal

FORMER = (
    'optim.name="adamw"', "optim.lr=3e-3", "optim.schedule.warmup_steps=30", "train.steps=200",
    'model.activation="gelu"', "model.zero_projections=false", "model.zero_head=false",
    "evaluation.interval_steps=100", "checkpoint.interval_steps=100",
)  # fmt: skip
"""The recipe with AdamW."""


def longhaul(room: Path, *arguments: str) -> float:
    """Run a command; seconds it took."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "longhaul", *arguments],
        cwd=room, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        sys.exit(f"longhaul {' '.join(arguments)} ended with {ended.returncode}:\n{ended.stderr}")
    return time.monotonic() - began


def first_step_s(folder: RunFolder) -> float:
    """From the start of the process to the end of its first step."""
    first = next(r for r in read_journal(folder, events=False) if isinstance(r, StepRecord))
    records = [r for r in read_journal(folder) if r.time <= first.time]
    return sum(sum(getattr(record, "seconds", {}).values()) for record in records)


def last_loss(folder: RunFolder) -> float:
    """Nats, over the whole held-out text."""
    finished = next(r for r in read_journal(folder, steps=False) if r.kind == "finished")
    return float(finished.data["loss"])


def race(room: Path, pairs: int) -> list[Bar]:
    """The recipe beside its former self."""

    def run(*options: str) -> tuple[float, float]:
        """Seconds of the whole process, text prepared included, and the last loss."""
        with tempfile.TemporaryDirectory(dir=room) as name:
            settings = [part for option in options for part in ("--set", option)]
            seconds = longhaul(Path(name), "train", "quickstart", *settings)
            return seconds, last_loss(RunFolder(Path(name) / "runs" / "quickstart"))

    measured = interleaved(pairs, {"now": run, "former": lambda: run(*FORMER)})
    now, former = measured["now"], measured["former"]
    ratio = paired_ratio([s for s, _ in now], [s for s, _ in former])
    beyond = max(ours - theirs for (_, ours), (_, theirs) in zip(now, former, strict=True))
    return [
        at_most("whole run over the former recipe's", ratio.mean, "×", 2 / 3, str(ratio)),
        at_most("worst loss − the former recipe's", beyond, "nats", 0),
        figure("the former recipe's loss", former[0][1], "nats"),
        figure("loss", now[0][1], "nats"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1, help="runs beside the former recipe")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quickstart-") as name:
        room = Path(name)
        whole = longhaul(room, "train", "quickstart")
        short = ("--set", "train.steps=10")
        longhaul(room, "train", "quickstart", "--new", *short)
        helps = [longhaul(room, "--help") for _ in range(5)]
        first_s = first_step_s(RunFolder(room / "runs" / "quickstart-2"))
        folder = RunFolder(room / "runs" / "quickstart")
        spent = time_spent(read_journal(folder))
        track, wall = sum(spent.values()), wall_seconds(read_journal(folder))
        steps = [r for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
        rate = sum(step.tokens for step in steps) / spent["training"]
        waiting = spent.get("data_wait", 0.0) / (spent["training"] + spent.get("data_wait", 0.0))
        bars = [
            at_most("whole run, text prepared included", whole / 60, "min", 4),
            at_most("start to first step, text prepared", first_s, "s", 4),
            at_most("longhaul --help (median of 5)", statistics.median(helps), "s", 0.3),
            at_most("step waits for data", 100 * waiting, "%", 1),
            at_most("seconds booked against wall time", 100 * abs(1 - track / wall), "%", 1),
            figure("training", rate, "tokens/s"),
            figure("checkpoint stall", spent.get("checkpoint_stall", 0.0), "s"),
        ]
        write_results("quickstart", [*bars, *race(room, given.pairs)], "make bench-quickstart")


if __name__ == "__main__":
    main()
