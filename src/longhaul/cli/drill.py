"""`longhaul drill`: break a run on purpose and see whether it survives."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.options import Overrides

Keep = Annotated[
    Path | None, typer.Option(help="run here and keep the runs; a temporary folder otherwise")
]
app = typer.Typer(help="Break a run on purpose and see whether it survives.", no_args_is_help=True)


@app.command()
def resume(
    kills: Annotated[int, typer.Option(min=1, help="how often the run is killed")] = 20,
    seed: Annotated[int, typer.Option(help="of the moments at which it is killed")] = 0,
    overrides: Overrides = None,
    keep: Keep = None,
) -> None:
    """SIGKILL a run at random moments; compare what remains with an undisturbed run, byte by byte.

    Saves, evaluations and starts are among the moments. The recipe is small and has gradient
    accumulation, a curriculum, dropout, a skipped range of data and an override in the ledger.
    """
    from longhaul.run.drill_resume import drill_resume

    verdict = drill_resume(kills, seed, tuple(overrides or ()), keep, print)
    raise typer.Exit(0 if verdict else 1)


@app.command()
def numbers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[N1 …]", help="which drills; all when absent")
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="with a judgement that finds nothing: they must fail")
    ] = False,
    keep: Keep = None,
) -> None:
    """Inject each fault of the incident book, N1 to N15, and each harmless disturbance, H1 to H7.

    Every run must end by itself as the book says, and nothing harmless may trigger anything.
    """
    from longhaul.run.drill_numbers import drill_numbers

    with _room(keep) as room:
        verdict = drill_numbers(names or (), room, print, blind=blind)
    raise typer.Exit(0 if verdict else 1)


@app.command()
def recovery(keep: Keep = None) -> None:
    """Let three things befall a run, and compare its end with the same run left alone."""
    from longhaul.run.drill_recovery import drill_recovery

    with _room(keep) as room:
        verdict = drill_recovery(room, print)
    raise typer.Exit(0 if verdict else 1)


@contextmanager
def _room(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="longhaul-drill-") as room:
        yield Path(room)
