"""`longhaul data prepare`, `data at`, and the commands of other files on text."""

from __future__ import annotations

from typing import Annotated

import typer

from longhaul.cli import corpus
from longhaul.cli.common import (
    PREPARED,
    RUNS,
    DataPath,
    Memory,
    Overrides,
    PreparedFolder,
    RayCluster,
    RecipeName,
    RunName,
    RunsFolder,
    Workers,
)
from longhaul.cli.dedup import dedup
from longhaul.cli.lint import lint
from longhaul.cli.transfer import pull, push, serve
from longhaul.cli.value import value
from longhaul.core.heap import importing

app = typer.Typer(help="Text: prepare it, or see what a step was trained on.", no_args_is_help=True)
app.command()(lint)


@app.command()
def prepare(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    prepared_dir: PreparedFolder = PREPARED,
    workers: Workers = None,
    memory: Memory = None,
    ray: RayCluster = "",
) -> None:
    """Read, split and tokenize a recipe's text, without training."""
    with importing():
        from longhaul.config.load import load_recipe
        from longhaul.data.corpus.engine import Resources
        from longhaul.data.forecast import forecast
        from longhaul.data.mixture import plan_of
        from longhaul.data.prepare import prepare as prepare_text

    asked = load_recipe(recipe, overrides or (), data).recipe
    resources = None
    if workers or memory is not None or ray:
        most = None if memory is None else int(memory * 1e9)
        resources = Resources.of_machine(workers, most, ray)
    dataset = prepare_text(asked, prepared_dir, print, resources=resources)
    print(f"{dataset.table()}\nprepared in {dataset.folder}")
    for line in forecast(
        plan_of(dataset, asked.data, asked.block_length(), asked.order.cycle), asked
    ):
        print(line)


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
    from longhaul.run.diagnose.saved_batch import documents_at

    for line in documents_at(run, runs_dir, step, attempt):
        print(line)


app.command()(dedup)
app.command()(value)
app.command()(corpus.clean)
app.command()(corpus.classifier)
app.command()(push)
app.command()(pull)
app.command()(serve)
