"""`longhaul data value`: what a recipe's sources and filters are worth to a model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import (
    PREPARED,
    DataPath,
    Device,
    Overrides,
    PreparedFolder,
    RecipeName,
)
from longhaul.core.signals import leaving_at_once


def value(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    device: Device = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="target tokens of each model",
            show_default="what a quarter of an hour is enough for in all, at most the recipe's own",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=3, help="models of each kind")] = 3,
    sizes: Annotated[
        str, typer.Option(metavar="SHARE,SHARE", help="sizes, in shares of the recipe's heads")
    ] = "0.25,0.5",
    change: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=VALUE",
            help="a change of the data to try as well, such as data.held_out.fraction=0.02; may be "
            "repeated",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="models trained at a time", show_default="one a core"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="folder of the study", show_default="values/NAME"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what it would cost, and train nothing")
    ] = False,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Train small models with and without each source and filter of RECIPE.

    Equal tokens and seeds; the loss on every held-out set with intervals, at several sizes, and
    whether the ranking holds between them. The same command goes on where it stopped.
    """
    from longhaul.plan.value.analysis import as_lines
    from longhaul.run.value.value import ValueRequest, value_of

    own = () if device is None else (f'machine.device="{device}"',)
    typed = ValueRequest(
        recipe=recipe,
        options=(*own, *(overrides or ())),
        data=data,
        tokens=tokens,
        seeds=seeds,
        sizes=_shares(sizes),
        changes=tuple(change or ()),
        workers=workers,
        folder=out,
        prepared=prepared_dir,
        dry=dry_run,
    )
    with leaving_at_once():
        found = value_of(typed, partial(print, flush=True))
    if found is None:
        return
    from longhaul.board.value import write_page

    made, folder = found
    page = write_page(recipe, made, folder)
    for line in as_lines(made):
        print(line)
    print(f"page: {page}")


def _shares(text: str) -> tuple[float, ...]:
    from longhaul.core.errors import UsageError

    try:
        shares = tuple(float(share) for share in text.split(","))
    except ValueError:
        shares = ()
    if len(shares) < 2 or not all(0 < share <= 1 for share in shares):
        raise UsageError(
            f"--sizes {text}: not two or more shares between 0 and 1",
            "one size says nothing of others: give --sizes 0.25,0.5",
        )
    return shares
