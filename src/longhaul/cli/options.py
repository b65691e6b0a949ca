"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="a run's name or folder")]
RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a shipped recipe's name or a .toml file")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="change one setting; may be repeated"),
]
DataPath = Annotated[
    str | None, typer.Option("--data", metavar="PATH", help="train on this file, folder or address")
]
RunsFolder = Annotated[Path, typer.Option("--runs-dir", help="folder that holds the runs")]
PreparedFolder = Annotated[
    Path, typer.Option("--prepared-dir", help="folder that holds prepared text")
]
RUNS = Path("runs")
PREPARED = Path("prepared")
