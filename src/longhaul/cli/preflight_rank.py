"""`longhaul preflight-rank`: one of the processes that compare layouts, started by preflight."""

from pathlib import Path
from typing import Annotated

import typer


def preflight_rank(
    asked: Annotated[Path, typer.Argument(help="the cases")],
    result: Annotated[Path, typer.Argument(help="written by rank 0")],
) -> None:
    """Compare layouts with the other ranks."""
    from longhaul.run.preflight.layouts import compare

    compare(asked, result)
