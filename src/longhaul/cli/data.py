"""`longhaul data prepare`, `data at`, and `data lint`: what is suspicious in a text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import (
    PREPARED,
    RUNS,
    DataPath,
    Overrides,
    PreparedFolder,
    RecipeName,
    RunName,
    RunsFolder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from longhaul.config.recipe import Recipe
    from longhaul.data.lint import Lint

_MOST_SHOWN = 120


def lint(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|TEXT...",
            help="recipes, or files, folders and addresses of text as in data.sources.path",
        ),
    ],
    text_field: Annotated[str, typer.Option(help="field or column that holds the text")] = "text",
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Look for text that a model should not learn: leaked escapes, wrong encodings, repetition."""
    from longhaul.data.documents import Breakage
    from longhaul.data.lint import Lint
    from longhaul.data.sources import locate

    for recipe in _recipes(texts, text_field):
        _compare(recipe, prepared_dir)
        for source in recipe.data.sources:
            corpus = locate(source, recipe.seed, prepared_dir / "downloads", typer.echo)
            if corpus.token_files:
                typer.echo(f"{corpus.name}: tokens already; there is no text to look at")
                continue
            breakage = Breakage(corpus.name, recipe.data.max_broken_fraction)
            seen = Lint()
            for document in corpus.documents(breakage):
                seen.see(document)
            breakage.judge()
            for line in summary(corpus.name, seen, breakage.summary()):
                typer.echo(line)


def _compare(recipe: Recipe, prepared_dir: Path) -> None:
    from longhaul.core.units import short_bytes
    from longhaul.data.dataset import MANIFEST
    from longhaul.data.prepare import prepared_folder
    from longhaul.data.verification import MEMORY, Verification

    folder = prepared_folder(recipe, prepared_dir, typer.echo)
    if not (folder / MANIFEST).exists():
        return
    verification = Verification(folder)  # all of it, whatever was compared before
    size = short_bytes(verification.left_bytes)
    verification.compare_all((folder / MEMORY,))
    typer.echo(f"{folder}: {verification.num_files} files ({size}) match their checksums")


def summary(name: str, seen: Lint, skipped: str) -> Iterator[str]:
    """What was seen in a source, for a person."""
    from longhaul.core.units import short_bytes

    size = f"{seen.num_documents:,} documents, {short_bytes(seen.num_bytes)}"
    yield f"{name}: {size}" + (f"; {skipped}" if skipped else "")
    signs = list(seen.signs())
    if not signs:
        yield "  nothing suspicious"
    for sign in signs:
        in_all = f", {sign.occurrences:,} in all" if sign.occurrences != sign.documents else ""
        yield f"  {sign.kind}: {sign.documents:,} documents ({sign.share:.2%}){in_all}"
        for example in sign.examples:
            shown = example if len(example) <= _MOST_SHOWN else f"{example[: _MOST_SHOWN - 1]}…"
            yield f"      {shown}"


def _recipes(texts: Sequence[str], text_field: str) -> Iterator[Recipe]:
    from longhaul.config.load import load_recipe, shipped_recipes, with_overrides

    shipped = shipped_recipes()
    for text in texts:
        if text in shipped or (text.endswith(".toml") and Path(text).is_file()):
            yield load_recipe(text).recipe
        else:
            plain = load_recipe("quickstart").recipe
            source = {"path": text, "text_field": text_field}
            yield with_overrides(plain, {"data.sources": [source]}, {"data.sources": text})


app = typer.Typer(help="Text: prepare it, or see what a step was trained on.", no_args_is_help=True)
app.command()(lint)


@app.command()
def prepare(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    prepared_dir: PreparedFolder = PREPARED,
    workers: Annotated[
        int | None, typer.Option(min=1, help="processes; one a core when absent")
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(metavar="GB", help="of all processes together; half of it when absent"),
    ] = None,
    ray: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="a Ray cluster that sees the same files")
    ] = "",
) -> None:
    """Read, split and tokenize a recipe's text, without training."""
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
    print(f"{dataset.summary()}\nprepared in {dataset.folder}")
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
