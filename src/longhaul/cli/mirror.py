"""`longhaul mirror`: a run in TensorBoard, in Weights & Biases, or for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from longhaul.cli.common import RUNS, RunName, RunsFolder, reads_a_run


@reads_a_run
def mirror(
    run: RunName,
    to: Annotated[
        Literal["tensorboard", "wandb", "prometheus", "alert"],
        typer.Option("--to", help="where; alert calls for incidents"),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="write there", show_default="RUN/trackers"),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="of /metrics for Prometheus")
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", help="to listen on, beside loopback")
    ] = None,
    supervised: Annotated[bool, typer.Option("--supervised", hidden=True)] = False,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Show a run in a tracker, live or finished, without touching its training.

    It goes on where it stopped and writes nothing twice; what a rollback undid is taken back. A
    recipe's monitor.trackers and monitor.metrics_port have the supervisor start the same.
    """
    from longhaul.core.output import print_out
    from longhaul.logbook.folder import open_run
    from longhaul.run.mirror import MirrorRequest
    from longhaul.run.mirror import mirror as show

    typed = MirrorRequest(to, out, port, host, supervised)
    raise typer.Exit(show(open_run(run, runs_dir), typed, print_out))
