"""`longhaul train`, and `longhaul worker`: one rank of a run.

A worker is started by the supervisor, torchrun or srun; its run's folder says all.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import (
    PREPARED,
    RUNS,
    DataPath,
    Device,
    Overrides,
    PreparedFolder,
    RecipeName,
    RunsFolder,
    Trust,
    options_of,
)
from longhaul.core.heap import importing
from longhaul.core.output import print_out
from longhaul.logbook.folder import RunFolder


def open_standard_files() -> None:
    """Open on nothing those a daemon closed; else pipes and logs would take their numbers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))


def worker(run: Annotated[Path, typer.Argument(metavar="RUN", help="the run's folder")]) -> None:
    """Train a run that has been set up, as one of its processes; its folder says all."""
    open_standard_files()
    with importing():
        from longhaul.cli.progress import TerminalView
        from longhaul.core.faults import Point, point
        from longhaul.logbook.folder import open_run
        from longhaul.parallel.layout import torchrun_of_srun
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


def train(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    device: Device = None,
    nproc: Annotated[
        int | None,
        typer.Option(min=1, help="worker processes, as a rule one for each GPU", show_default="1"),
    ] = None,
    max_hours: Annotated[
        float | None, typer.Option(help="end the run after this many hours in all")
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="start another run, beside the one of that name")
    ] = False,
    small: Annotated[
        bool, typer.Option("--small", help="train the recipe's small twin: every switch, no size")
    ] = False,
    trust: Trust = False,
    runs_dir: RunsFolder = RUNS,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Train RECIPE: start its run, or go on with it where it stopped.

    The options of a run's earlier starts stay in force; options given now are added to them.
    Worker processes do the training, and are started again when they fail; what torchrun or srun
    starts trains itself, and is watched by them.
    """
    open_standard_files()
    with importing():
        options = options_of(recipe, data, overrides, device, small)
    if max_hours is not None:
        options.append(f"train.max_hours={float(max_hours)}")
    if nproc is not None:
        options.append(f"machine.processes={nproc}")
    from longhaul.core.signals import leaving_at_once

    with leaving_at_once():  # a notice that comes before anything was begun
        with importing():
            from longhaul.parallel.layout import torchrun_of_srun
            from longhaul.run.train.launch import Start, start, start_supervised

        os.environ.update(torchrun_of_srun(os.environ))
        typed = Start(recipe, tuple(options), data, new, runs_dir, prepared_dir, trust)
        if "RANK" in os.environ:
            from longhaul.cli.progress import TerminalView

            raise typer.Exit(start(typed, TerminalView()))
        raise typer.Exit(start_supervised(typed, print_out, _work))


def _work(folder: RunFolder) -> None:
    """What a worker's process does: the command `longhaul worker`."""
    from longhaul.cli.common import leaving_in_order
    from longhaul.core.signals import leave_on_interrupt

    leave_on_interrupt()  # the lease is the supervisor's; until it trains there is nothing to save
    with leaving_in_order():
        worker(folder.path)
