"""`longhaul data lint`: what would embarrass a run in its text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import PREPARED, PreparedFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from longhaul.config.recipe import Recipe


def lint(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE|TEXT...",
            help="recipes, or files, folders and addresses of text as in data.sources.path",
        ),
    ],
    text_field: Annotated[str, typer.Option(help="field or column that holds the text")] = "text",
    strict: Annotated[
        bool, typer.Option("--strict", help="end with 3 if anything is found")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a page with pictures")
    ] = None,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Look for text that a model should not learn: escapes, encodings, repetition, leakage."""
    from longhaul.core.errors import ExitCode
    from longhaul.data.lint.report import lint_recipe

    reports = []
    for recipe in _recipes(texts, text_field):
        report = lint_recipe(recipe, prepared_dir, typer.echo)
        for line in report.lines():
            typer.echo(line)
        reports.append(report)
    if html is not None:
        from longhaul.board.lint import write_lint_page

        write_lint_page(html, reports)
        typer.echo(f"the page with pictures: {html}")
    if strict and any(report.findings for report in reports):
        raise typer.Exit(ExitCode.DATA_WRONG)


def _recipes(texts: Sequence[str], text_field: str) -> Iterator[Recipe]:
    """Each recipe that is named, and one of all texts, which are compared with each other."""
    from longhaul.config.load import load_recipe, shipped_recipes, with_overrides

    shipped = shipped_recipes()
    plain = []
    for text in texts:
        if text in shipped or (text.endswith(".toml") and Path(text).is_file()):
            yield load_recipe(text).recipe
        else:
            plain.append(text)
    if plain:
        sources = [
            {"path": text, "text_field": text_field, "name": name}
            for text, name in zip(plain, _names(plain), strict=True)
        ]
        quickstart = load_recipe("quickstart").recipe
        overrides = {"data.sources": sources, "name": "text"}
        yield with_overrides(quickstart, overrides, {"data.sources": ", ".join(plain)})


def _names(texts: Sequence[str]) -> Iterator[str]:
    """Empty where a text's own name will do; one with a number where another has it too."""
    from longhaul.config.recipe import source_name

    own = [source_name("", text) if text else "" for text in texts]
    for number, name in enumerate(own):
        yield f"{name}-{number + 1}" if own.count(name) > 1 else ""
