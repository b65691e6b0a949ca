"""`longhaul train`."""

from typing import Annotated

import typer

from longhaul.cli.options import (
    PREPARED,
    RUNS,
    DataPath,
    Overrides,
    PreparedFolder,
    RecipeName,
    RunsFolder,
)


def train(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    device: Annotated[
        str | None, typer.Option(help="auto, cuda, mps or cpu", show_default="auto")
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
    runs_dir: RunsFolder = RUNS,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Train RECIPE: start its run, or go on with it where it stopped.

    The options of a run's earlier starts stay in force; options given now are added to them.
    """
    options = [*(_twin(recipe, data) if small else ()), *(overrides or ())]
    if device is not None:
        options.append(f'machine.device="{device}"')
    if max_hours is not None:
        options.append(f"train.max_hours={float(max_hours)}")

    from longhaul.cli.progress import TerminalView
    from longhaul.run.start import Start, start

    code = start(Start(recipe, tuple(options), data, new, runs_dir, prepared_dir), TerminalView())
    raise typer.Exit(code)


def _twin(recipe: str, data: str | None) -> tuple[str, ...]:
    from longhaul.config.load import load_recipe
    from longhaul.config.shrink import shrunken

    return shrunken(load_recipe(recipe).recipe, own_data=data is not None)
