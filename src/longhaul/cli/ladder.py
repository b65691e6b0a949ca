"""`longhaul ladder RECIPE`: whether it scales."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import PREPARED, DataPath, Device, Overrides, PreparedFolder, RecipeName
from longhaul.core.errors import ExitCode


def ladder(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    device: Device = None,
    sizes: Annotated[
        int, typer.Option(min=3, help="sizes to learn from; one more is predicted and trained")
    ] = 3,
    up_to: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="PARAMETERS",
            help="most parameters outside embeddings; the recipe's own when absent",
        ),
    ] = None,
    tokens_per_parameter: Annotated[
        float | None,
        typer.Option(min=1e-6, help="length of each size's runs; the recipe's own when absent"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=2, help="runs of each kind")] = 2,
    idea: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH=VALUE,…",
            help="an idea and the recipe without it; or a switch of the recipe, or none; may be "
            "repeated; every switch that GPT-2 does not have when absent",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="folder of the ladder", show_default="ladders/NAME"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="say what it would cost, and train nothing")
    ] = False,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Train RECIPE at several sizes, and see what holds when it grows.

    At each size the best and the lowest diverging learning rate, and what each idea gains; then the
    next size's rate and loss are predicted, and it is trained. The same command goes on where it
    stopped. `docs/ladder.md` says how all of it is defined.
    """
    from longhaul.core.signals import NOTICES, handled
    from longhaul.plan.ladder.analysis import as_markdown
    from longhaul.run.ladder.ladder import LadderRequest, run_ladder

    own = () if device is None else (f'machine.device="{device}"',)

    def leave(number: int, frame: object) -> None:
        raise typer.Exit(ExitCode.START_AGAIN)

    typed = LadderRequest(
        recipe=recipe,
        options=(*own, *(overrides or ())),
        data=data,
        count=sizes,
        up_to=up_to,
        tokens_per_parameter=tokens_per_parameter,
        seeds=seeds,
        ideas=tuple(idea or ()),
        folder=out,
        prepared=prepared_dir,
        dry=dry_run,
    )
    with handled(NOTICES, leave):
        analysis = run_ladder(typed, lambda line: print(line, flush=True))
    if analysis is not None:
        print(f"\n{as_markdown(analysis)}", end="")
