"""`longhaul board`: runs, live, in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import RUNS, reads_a_run


@reads_a_run
def board(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR …]", help="folders that hold runs, or stores", show_default="runs"
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="address to listen at")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free")] = 8088,
    reference: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="a CSV of loss by step or tokens to compare runs with"),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="nobody may change a run from there")
    ] = False,
) -> None:
    """Show runs live in a browser; whoever has the printed address may also steer them."""
    from longhaul.run.board.serve import serve_board

    serve_board(
        places or [str(RUNS)], host, port, references=reference or [], read_only=read_only,
        say=typer.echo,
    )  # fmt: skip
