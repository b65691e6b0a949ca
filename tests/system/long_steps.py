"""`longhaul` whose micro-batches take long: `python long_steps.py SECONDS HANG COMMAND…`.

SECONDS are added to every micro-batch of training. HANG is `RANK:STEP:NUMBER`: that rank never ends
its micro-batch of that number, from 1, in the step that it makes after so many; or `-`.
"""

import os
import sys
import time
from typing import Any

import longhaul.cli.train
from longhaul.cli.main import main

PASS_S = float(sys.argv[1])
HANG = tuple(map(int, sys.argv[2].split(":"))) if sys.argv[2] != "-" else None


def lengthen() -> None:
    from longhaul.run.train.worker import spin_little

    spin_little()
    from longhaul.train.step import TrainingStep
    from longhaul.train.trainer import Trainer

    compute, make = TrainingStep._loss, Trainer._step
    rank, number, steps = int(os.environ.get("RANK", "0")), [0], [0]

    def begun(trainer: Trainer) -> None:
        number[0], steps[0] = 0, trainer.position.step
        make(trainer)

    def longer(step: TrainingStep, *given: Any, **named: Any) -> Any:
        number[0] += 1
        while (rank, steps[0], number[0]) == HANG:
            time.sleep(0.1)
        time.sleep(PASS_S)
        return compute(step, *given, **named)

    Trainer._step = begun  # type: ignore[method-assign]
    TrainingStep._loss = longer  # type: ignore[method-assign]


def work(*given: Any) -> None:
    lengthen()
    work_as_ever(*given)


if __name__ == "__main__":
    sys.argv = ["longhaul", *sys.argv[3:]]
    work_as_ever = longhaul.cli.train._work
    longhaul.cli.train._work = work
    main()
