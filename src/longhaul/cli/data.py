"""`longhaul data prepare`, `data at`, and the group that `data lint` is in."""

from typing import Annotated

import typer

from longhaul.cli.lint import lint
from longhaul.cli.options import (
    PREPARED,
    RUNS,
    DataPath,
    Overrides,
    PreparedFolder,
    RecipeName,
    RunName,
    RunsFolder,
)

app = typer.Typer(help="Text: prepare it, or see what a step was trained on.", no_args_is_help=True)
app.command()(lint)


@app.command()
def prepare(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Read, split and tokenize a recipe's text, without training."""
    from longhaul.config.load import load_recipe
    from longhaul.data.prepare import prepare as prepare_text

    dataset = prepare_text(load_recipe(recipe, overrides or (), data).recipe, prepared_dir, print)
    print(f"{dataset.summary()}\nprepared in {dataset.folder}")


@app.command()
def at(
    run: RunName,
    step: Annotated[int, typer.Option("--step", help="updates made once the step was done")],
    attempt: Annotated[
        int | None, typer.Option(help="of a step made more than once; the last when absent")
    ] = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Name the documents of the batch that a step was trained on."""
    from longhaul.run.commands.data_at import documents_at

    for line in documents_at(run, runs_dir, step, attempt):
        print(line)
