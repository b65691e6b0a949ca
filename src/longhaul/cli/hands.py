"""Hands on a running job: `longhaul set`, `rollback`, `fork`, `stop`, `note`.

They write into the run's `requests/` and read its journal; they never touch the run itself.
"""

from typing import Annotated

import typer

from longhaul.cli.options import RUNS, RunName, RunsFolder

Reason = Annotated[str, typer.Option("--reason", help="why; kept in the logbook")]
Wait = Annotated[
    float, typer.Option("--wait", help="seconds to wait for the run's answer; 0 does not")
]
Force = Annotated[
    bool, typer.Option("--force", help="ask for a learning rate that looks like a slip of the pen")
]


def set_setting(
    run: RunName,
    change: Annotated[str, typer.Argument(metavar="PATH=VALUE")],
    reason: Reason = "",
    force: Force = False,
    wait: Wait = 30.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Change one setting of a run at its next step border; a restart keeps it."""
    from longhaul.run.train.control_requests import ask_set

    print(ask_set(run, runs_dir, change, reason, wait, force=force))


def rollback(
    run: RunName,
    to: Annotated[int, typer.Option("--to", help="step; the newest state at or before it")],
    reason: Reason = "",
    wait: Wait = 60.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Go back to an earlier state; decisions stay. A run that rests does so when next started."""
    from longhaul.run.train.control_requests import ask_rollback

    print(ask_rollback(run, runs_dir, to, reason, wait))


def fork(
    run: RunName,
    at: Annotated[int, typer.Option("--at", help="step; the newest state at or before it")],
    change: Annotated[
        list[str], typer.Option("--set", metavar="PATH=VALUE", help="change a setting there")
    ] = [],  # noqa: B006 (typer reads the default and never changes it)
    reset: Annotated[
        list[str],
        typer.Option(
            "--reset",
            help="optimizer: fresh state, warmed up; schedule: the learning rate's schedule "
            "begins at that step; data: its order begins anew; loss-scale: its first value",
        ),
    ] = [],  # noqa: B006
    reason: Reason = "",
    force: Force = False,
    wait: Wait = 60.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Begin a new line of descent, with a major number of its own, at an earlier state."""
    from longhaul.run.train.control_requests import ask_fork

    print(ask_fork(run, runs_dir, at, change, reset, reason, wait, force))


def stop(run: RunName, reason: Reason = "", wait: Wait = 60.0, runs_dir: RunsFolder = RUNS) -> None:
    """Let a run finish its step, save, and end; `longhaul train` goes on with it."""
    from longhaul.run.train.control_requests import ask_stop

    print(ask_stop(run, runs_dir, reason, wait))


def note(
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    wait: Wait = 30.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Write a note into a run's logbook."""
    from longhaul.run.train.control_requests import ask_note

    print(ask_note(run, runs_dir, text, wait))
