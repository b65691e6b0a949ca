"""`longhaul data clean`: what cleaning would do; `data classifier`: one that tells good text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import PREPARED, DataPath, Overrides, PreparedFolder, RecipeName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from longhaul.data.clean.classifier import Classifier
    from longhaul.data.documents import Document

_TEXT = "a file, folder or address of text, as in data.sources.path"


def clean(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    show: Annotated[
        int, typer.Option(min=0, max=20, help="examples of each reason, and documents before/after")
    ] = 3,
    sample_mb: Annotated[
        float, typer.Option(min=0.001, help="text of each source that is looked at")
    ] = 20.0,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Show what a recipe's adapters, cleaning and filters do to a sample; write nothing."""
    from longhaul.config.load import load_recipe
    from longhaul.core.output import print_out
    from longhaul.data.clean.preview import preview, preview_lines
    from longhaul.data.sources import locate

    settings = load_recipe(recipe, overrides or (), data).recipe
    for source in settings.data.sources:
        corpus = locate(source, settings.seed, prepared_dir / "downloads", typer.echo)
        if corpus.token_files:
            typer.echo(f"{corpus.name}: tokens already; there is no text to clean")
            continue
        found = preview(corpus, settings.data, int(sample_mb * 1e6), show)
        for line in preview_lines(found, show):
            print_out(line)


def classifier(
    good: Annotated[str, typer.Argument(metavar="GOOD", help=_TEXT)],
    bad: Annotated[str, typer.Argument(metavar="BAD", help=_TEXT)],
    output: Annotated[Path, typer.Option("--output", "-o", help="file to write")],
    text_field: Annotated[
        str, typer.Option(help="field that holds the text in JSON lines and Parquet")
    ] = "text",
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Train a quality classifier on two sets of documents, for data.filters.classifier."""
    from longhaul.data.clean.training import train_classifier

    sets = [_documents(path, text_field, prepared_dir) for path in (good, bad)]
    trained = train_classifier(*sets)
    trained.save(output)
    for line in _described(trained):
        typer.echo(line)
    typer.echo(f"written to {output}; use it with data.filters.classifier = {str(output)!r}")


def _documents(path: str, text_field: str, prepared_dir: Path) -> Iterator[Document]:
    from longhaul.config.data import SourceSection
    from longhaul.core.errors import DataError
    from longhaul.data.documents import Breakage
    from longhaul.data.sources import locate

    source = SourceSection(path=path, text_field=text_field)
    corpus = locate(source, 0, prepared_dir / "downloads", typer.echo)
    if corpus.token_files:
        raise DataError(f"{path}: tokens already; there is no text to learn from", "give it text")
    breakage = Breakage(corpus.name, 1.0 if corpus.reader.tolerates_all else 0.001)
    yield from corpus.documents(breakage)
    breakage.judge()


def _described(trained: Classifier) -> Iterator[str]:
    facts = trained.facts
    for name in ("good", "bad"):
        yield f"{name}: {facts[name]['documents']:,} documents, {facts[name]['taken']:,} taken"
    if facts["in both"]:
        yield f"{facts['in both']:,} in both sets, taken in neither"
    if facts["area"] is None:
        yield "too few documents to measure how well it tells them apart"
    else:
        yield (
            f"of a fifth kept to measure: {facts['good kept']:.1%} of good ones stay, "
            f"{facts['bad left out']:.1%} of bad ones go at threshold 0.5; area under the ROC "
            f"curve {facts['area']:.3f}"
        )
    for name in ("good", "bad"):
        yield f"most {name} words: {', '.join(facts['telling'][name]) or 'none'}"
