"""`longhaul worker`: one rank of a run, as the supervisor, torchrun or srun starts it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer


def open_standard_files() -> None:
    """Open on nothing those that a daemon closed before it started us; else pipes and logs would
    take their numbers.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def worker(run: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder")]) -> None:
    """Train a run that has been set up, as one of its processes; its folder says all."""
    open_standard_files()
    from longhaul.cli.progress import TerminalView
    from longhaul.core.faults import Point, point
    from longhaul.logbook.folder import open_run
    from longhaul.parallel.place import torchrun_of_srun
    from longhaul.run.train.worker import enter
    from longhaul.supervise.ranks.group import ATTEMPT

    os.environ.update(torchrun_of_srun(os.environ))
    folder = open_run(run)
    point(Point.WORKER_START, folder)
    # Supervised, rank 0 writes to the terminal of a person, and into its log as well; the output
    # of the others is their log.
    to_terminal = ATTEMPT in os.environ and os.environ.get("RANK", "0") == "0"
    log = folder.workers / "0.log" if to_terminal else None
    raise typer.Exit(enter(folder, TerminalView(log)))
