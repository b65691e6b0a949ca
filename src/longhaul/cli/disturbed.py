"""A drill's process: `python -m longhaul.cli.disturbed COMMAND RUN …` is `longhaul COMMAND RUN …`
with the faults that a drill has laid into the run's folder.

They befall the process itself, or, where it trains as a supervisor, each of its workers.

Enters: arguments. Leaves: what the command leaves. Never knows: what the faults are.
"""

import sys
from pathlib import Path

import longhaul.cli.train
from longhaul.cli.main import main
from longhaul.logbook.folder import RunFolder


def _disturb(folder: RunFolder) -> None:
    from longhaul.run.train.worker import spin_little

    spin_little()  # before torch is imported, as in any worker
    from longhaul.run.drill.disturbed import disturb

    disturb(folder)


def _work(folder: RunFolder) -> None:
    """What a worker's process does: the same as ever, after it was disturbed."""
    _disturb(folder)
    _work_as_ever(folder)


if __name__ == "__main__":
    run = RunFolder(Path(sys.argv[2]))
    if sys.argv[1] == "train":
        from longhaul.run.drill.disturbed_supervisor import let_in_kernel_log

        _work_as_ever = longhaul.cli.train._work
        longhaul.cli.train._work = _work
        let_in_kernel_log(run)
    else:
        _disturb(run)
    main()
