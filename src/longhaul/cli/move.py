"""`longhaul run move`, and `longhaul runs --all`: runs in several clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import RUNS, RunName, RunsFolder, console, since

app = typer.Typer(help="A run as a whole: move it to another cluster.", no_args_is_help=True)

Clusters = Annotated[
    Path | None,
    typer.Option("--clusters", metavar="FILE", help="clusters.toml", show_default="searched"),
]
Here = Annotated[
    str | None,
    typer.Option(
        "--here",
        metavar="CLUSTER",
        envvar="LONGHAUL_CLUSTER",
        help="the cluster this machine is in",
        show_default="that of --runs-dir",
    ),
]


@app.callback()
def run() -> None:
    """A run as a whole: move it to another cluster."""


@app.command()
def move(
    run: RunName,
    to: Annotated[
        str | None, typer.Option("--to", metavar="CLUSTER", help="send it there, from here")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="CLUSTER", help="fetch it from there, to here")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="why; kept in the logbook")] = "",
    stop: Annotated[bool, typer.Option("--stop", help="let a live run save and end first")] = False,
    wait: Annotated[float, typer.Option("--wait", help="seconds for that")] = 600.0,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="end a move to there that nobody has taken yet")
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="DIR",
            help="that cluster's folder of runs, mounted here: both halves at once",
        ),
    ] = None,
    here: Here = None,
    clusters: Clusters = None,
    runs_dir: RunsFolder = RUNS,
    prepared_dir: Annotated[
        Path | None,
        typer.Option(
            "--prepared-dir",
            help="folder that holds prepared text where the run arrives",
            show_default="that of clusters.toml",
        ),
    ] = None,
) -> None:
    """Move a run to another cluster, where it goes on as its next segment.

    Give --to where it lies, and --from where it goes. Its newest sound checkpoint and its log pass
    through the store of the cluster it goes to, compared by hashes. Killed, the same command goes
    on; a run that has left, or is not wholly there, is not started.
    """
    from longhaul.core.output import print_out
    from longhaul.run.move.move import MoveRequest
    from longhaul.run.move.move import move as move_run

    typed = MoveRequest(
        run=run, runs=runs_dir, prepared=prepared_dir, to=to, source=source, here=here,
        reason=reason, stop_first=stop, wait_s=wait, cancel=cancel, into=into, clusters=clusters,
    )  # fmt: skip
    move_run(typed, print_out)


def print_all(clusters: Path | None, here: str | None, runs_dir: Path, wait_s: float) -> None:
    """The runs of every cluster, and a line for each that does not answer."""
    from rich.table import Table

    from longhaul.core.clocks import RealClock
    from longhaul.core.errors import UsageError
    from longhaul.run.move.overview import overview
    from longhaul.run.move.sites import Sites

    sites, clock = Sites.load(clusters), RealClock()
    try:
        own = sites.here(runs_dir, here)
    except UsageError:
        if here is not None:
            raise
        own = None  # a laptop that is in none of them
    found = overview(sites.all, own, runs_dir, clock, wait_s)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "cluster", "state"):
        table.add_column(title, overflow="fold")
    for title in ("step", "loss", "val loss", "last seen"):
        table.add_column(title, justify="right")
    table.add_column("", overflow="fold")
    for row in found.rows:
        figures = ["–"] * 4
        if (summary := row.summary) is not None:
            total = f"/{summary.total_steps:,}" if summary.total_steps else ""
            losses = summary.loss, summary.validation_loss
            figures = [
                f"{summary.step:,}{total}",
                *("–" if loss is None else f"{loss:.4f}" for loss in losses),
                "–" if summary.seen is None else since(summary.seen, clock.wall()),
            ]
        table.add_row(row.run, row.cluster, row.state, *figures, row.where)
    if found.rows:
        console().print(table)
    else:
        print("no runs")
    for line in found.silent:
        print(line)
