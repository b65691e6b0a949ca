"""Hands on a running job: `longhaul set`, `stop`, `note`.

They write into the run's `requests/` and read its journal; they never touch the run itself.
"""

from typing import Annotated

import typer

from longhaul.cli.options import RUNS, RunName, RunsFolder

Reason = Annotated[str, typer.Option("--reason", help="why; kept in the logbook")]
Wait = Annotated[
    float, typer.Option("--wait", help="seconds to wait for the run's answer; 0 does not")
]


def set_setting(
    run: RunName,
    change: Annotated[str, typer.Argument(metavar="PATH=VALUE")],
    reason: Reason = "",
    wait: Wait = 30.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Change one setting of a run at its next step border; a restart keeps it."""
    from longhaul.run.ask import ask_set

    print(ask_set(run, runs_dir, change, reason, wait))


def stop(run: RunName, reason: Reason = "", wait: Wait = 60.0, runs_dir: RunsFolder = RUNS) -> None:
    """Let a run finish its step, save, and end; `longhaul train` goes on with it."""
    from longhaul.run.ask import ask_stop

    print(ask_stop(run, runs_dir, reason, wait))


def note(
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    wait: Wait = 30.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Write a note into a run's logbook."""
    from longhaul.run.ask import ask_note

    print(ask_note(run, runs_dir, text, wait))
