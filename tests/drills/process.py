"""A process of an acceptance drill: `python -m drills.process COMMAND RUN …` is `longhaul COMMAND
RUN …` with the faults laid into the run's folder, those in numbers too.
"""

import sys
from pathlib import Path

from longhaul.cli.disturbed import inject_around
from longhaul.cli.entry import main
from longhaul.core.faults import Point, register
from longhaul.logbook.folder import RunFolder


def _inject(folder: RunFolder) -> None:
    from drills.number_faults import inject  # it imports torch

    inject(folder)


if __name__ == "__main__":
    run = RunFolder(Path(sys.argv[2]))
    if sys.argv[1] in ("train", "worker"):
        inject_around(run)
        register(Point.WORKER_START, _inject)
    else:
        _inject(run)
    main()
