"""`longhaul` whose micro-batches take long: `python long_steps.py SECONDS HANG COMMAND…`.

SECONDS are added to every micro-batch of training. HANG is `RANK:STEP:NUMBER`: that rank never ends
its micro-batch of that number, from 1, in the step that it makes after so many; or `-`.
"""

import os
import sys
import time
from typing import Any

from longhaul.cli.entry import main
from longhaul.core.faults import Point, register

PASS_S = float(sys.argv[1])
HANG = tuple(map(int, sys.argv[2].split(":"))) if sys.argv[2] != "-" else None
number, steps = [0], [0]


def begun(trainer: Any, step: int) -> None:
    number[0], steps[0] = 0, step - 1


def longer(loss: Any, **context: Any) -> None:
    number[0] += 1
    while (int(os.environ.get("RANK", "0")), steps[0], number[0]) == HANG:
        time.sleep(0.1)
    time.sleep(PASS_S)


if __name__ == "__main__":
    sys.argv = ["longhaul", *sys.argv[3:]]
    register(Point.BEFORE_STEP, begun)
    register(Point.LOSS, longer)
    main()
