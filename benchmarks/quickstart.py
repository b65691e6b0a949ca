"""The newcomer's run, measured: whole time, start-up, waiting for data, saving.

    python -m benchmarks.quickstart

Runs recipe `quickstart` in a temporary folder, then starts another run on the prepared text.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common import at_most, figure, write_results

from longhaul.core.clocks import time_spent, wall_seconds
from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal


def longhaul(room: Path, *arguments: str) -> float:
    """Run a command; seconds it took."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "longhaul", *arguments],
        cwd=room, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        sys.exit(f"longhaul {' '.join(arguments)} ended with {ended.returncode}:\n{ended.stderr}")
    if arguments == ("train", "quickstart"):
        print(ended.stdout)
    return time.monotonic() - began


def first_step_s(folder: RunFolder) -> float:
    """From the start of the process to the end of its first step."""
    first = next(r for r in read_journal(folder, events=False) if isinstance(r, StepRecord))
    records = [r for r in read_journal(folder) if r.time <= first.time]
    return sum(sum(getattr(record, "seconds", {}).values()) for record in records)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="quickstart-") as name:
        room = Path(name)
        whole = longhaul(room, "train", "quickstart")
        short = ("--set", "train.steps=10", "--set", "optim.schedule.warmup_steps=2")
        longhaul(room, "train", "quickstart", "--new", *short)
        helps = [longhaul(room, "--help") for _ in range(5)]
        folder = RunFolder(room / "runs" / "quickstart")
        spent = time_spent(read_journal(folder))
        track, wall = sum(spent.values()), wall_seconds(read_journal(folder))
        steps = [r for r in read_journal(folder, events=False) if isinstance(r, StepRecord)]
        rate = sum(step.tokens for step in steps) / spent["training"]
        waiting = spent.get("data_wait", 0.0) / (spent["training"] + spent.get("data_wait", 0.0))
        write_results(
            "quickstart",
            [
                at_most("whole run, text prepared included", whole / 60, "min", 4),
                at_most(
                    "start to first step, text prepared",
                    first_step_s(RunFolder(room / "runs" / "quickstart-2")),
                    "s",
                    4,
                ),
                at_most("longhaul --help (median of 5)", statistics.median(helps), "s", 0.3),
                at_most("step waits for data", 100 * waiting, "%", 1),
                at_most("seconds booked against wall time", 100 * abs(1 - track / wall), "%", 1),
                figure("training", rate, "tokens/s"),
                figure("checkpoint stall", spent.get("checkpoint_stall", 0.0), "s"),
            ],
            "make bench-quickstart",
        )


if __name__ == "__main__":
    main()
