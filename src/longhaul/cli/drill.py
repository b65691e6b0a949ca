"""`longhaul drill`: break a run on purpose and see whether it survives."""

from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.options import Overrides

app = typer.Typer(help="Break a run on purpose and see whether it survives.", no_args_is_help=True)


@app.command()
def resume(
    kills: Annotated[int, typer.Option(min=1, help="how often the run is killed")] = 20,
    seed: Annotated[int, typer.Option(help="of the moments at which it is killed")] = 0,
    overrides: Overrides = None,
    keep: Annotated[
        Path | None, typer.Option(help="run here and keep the runs; a temporary folder otherwise")
    ] = None,
) -> None:
    """SIGKILL a run at random moments; compare what remains with an undisturbed run, byte by byte.

    Saves, evaluations and starts are among the moments. The recipe is small and has gradient
    accumulation, a curriculum, dropout, a skipped range of data and an override in the ledger.
    """
    from longhaul.run.drill_resume import drill_resume

    verdict = drill_resume(kills, seed, tuple(overrides or ()), keep, print)
    raise typer.Exit(0 if verdict else 1)
