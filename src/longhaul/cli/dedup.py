"""`longhaul data dedup`: which documents a recipe drops as duplicates, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import (
    PREPARED,
    DataPath,
    Memory,
    Overrides,
    PreparedFolder,
    RayCluster,
    RecipeName,
    Workers,
)


def dedup(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    prepared_dir: PreparedFolder = PREPARED,
    explain: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="why this document, as `peps.jsonl:17`, goes or stays"),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="where the page goes; beside the data else")
    ] = None,
    workers: Workers = None,
    memory: Memory = None,
    ray: RayCluster = "",
) -> None:
    """Find a recipe's duplicates: by source, by cluster, and why one document goes."""
    from longhaul.config.load import load_recipe
    from longhaul.data.corpus.dedup.explain import explain as explained
    from longhaul.data.corpus.engine import Resources
    from longhaul.run.duplicates import find_duplicates, tell

    asked = load_recipe(recipe, overrides or (), data).recipe
    most = None if memory is None else int(memory * 1e9)
    found = find_duplicates(asked, prepared_dir, Resources.of_machine(workers, most, ray), print)
    if explain is not None:
        lines = explained(found, explain)
    else:
        lines = tell(asked.name, found, html)
    for line in lines:
        print(line)
