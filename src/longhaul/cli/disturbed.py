"""A drill's process: `python -m longhaul.cli.disturbed COMMAND RUN …` is `longhaul COMMAND RUN …`
with the faults that a drill has left in the run's folder. They act on the process itself, or, where
it trains as a supervisor, on each of its workers.
"""

import sys
from functools import partial
from pathlib import Path

from longhaul.cli.entry import main
from longhaul.core.faults import Point, register
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.laid import kernel_messages, no_answer, refuse_if_gone
from longhaul.run.train.worker import spin_little


def inject_around(folder: RunFolder) -> None:
    """Let a run's faults act in this process, its supervisor or a worker."""
    register(Point.KERNEL_LOG, partial(kernel_messages, folder))
    register(Point.NODE_ANSWER, partial(no_answer, folder))
    register(Point.WORKER_START, _inject)


def _inject(folder: RunFolder) -> None:
    refuse_if_gone(folder)
    spin_little()  # before torch is imported, as in any worker
    from longhaul.run.drill.injection import inject

    inject(folder)


if __name__ == "__main__":
    inject_around(RunFolder(Path(sys.argv[2])))
    main()
