"""The second held-out set of the detectors: other text, other shapes, looked at once.

    python -m benchmarks.divergence_lab.second [--processes 2] [--quick]

Enters: options. Leaves: tables, `results/divergence_lab_second.json`, and with `--store` the
traces. Never knows: how it is done.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import at_least, at_most, figure, write_results
from benchmarks.divergence_lab import lab
from benchmarks.divergence_lab.causes import CAUSES, caused
from benchmarks.divergence_lab.other import missing_text, of_other_text
from benchmarks.divergence_lab.runs import SECOND_FROM, Run, healthy
from benchmarks.divergence_lab.score import score, slow_kinds

RUNS_OF_A_CAUSE = 3
HEALTHY_RUNS = 30
NAME = "second"
COMMAND = "python -m benchmarks.divergence_lab.second"


def catalogue() -> Iterator[Run]:
    """Every run of the set, healthy ones first."""
    for number in range(SECOND_FROM, SECOND_FROM + HEALTHY_RUNS):
        yield of_other_text(healthy(number))
    for mechanism in CAUSES:
        for number in range(SECOND_FROM, SECOND_FROM + RUNS_OF_A_CAUSE):
            yield of_other_text(caused(mechanism, number))


def main() -> None:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--quick", action="store_true", help="judge the stored traces only")
    parser.add_argument("--store", action="store_true", help="keep the traces in the repository")
    parser.add_argument("--home", type=Path, default=lab.HOME)
    given = parser.parse_args()
    if not given.quick and (why := missing_text()):
        sys.exit(f"the second held-out set needs text that is not here: {why}")
    made = (
        lab.stored(name=NAME) if given.quick
        else lab.fresh(given.home, given.processes, list(catalogue()))
    )  # fmt: skip
    if given.store:
        lab.store(made, NAME)
    judged = lab.judge(made)
    lab.show({"second held-out": judged}, given.markdown)
    figures, slow = score(judged), lab.lead_of(slow_kinds(judged))
    if not given.quick:
        write_results("divergence_lab_second", [
            figure("runs that came to harm", figures.harmed, "runs"),
            figure("healthy steps", figures.healthy_steps, "steps"),
            at_least("recall", figures.recall.value, "", lab.RECALL_BAR,
                     lab.interval(figures, "recall")),
            at_most("false alarms per 10,000 healthy steps", figures.false_alarms.value, "",
                    lab.FALSE_ALARM_BAR, lab.interval(figures, "false_alarms")),
            figure("precision of alarms", figures.precision.value, "",
                   lab.interval(figures, "precision")),
            figure("median lead of slowly growing kinds", slow.value, "steps",
                   format(slow, ".0f")),
        ], COMMAND)  # fmt: skip


if __name__ == "__main__":
    main()
