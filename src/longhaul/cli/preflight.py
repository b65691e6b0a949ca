"""`longhaul preflight`: what would fail later, now; `preflight-rank` is one of its processes."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longhaul.cli.common import (
    PREPARED,
    RUNS,
    DataPath,
    Overrides,
    PreparedFolder,
    RecipeName,
    RunsFolder,
    console,
)
from longhaul.core.records import finite_or_word
from longhaul.core.signals import leaving_at_once

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longhaul.core.errors import ExitCode
    from longhaul.run.preflight.context import Check


def preflight_rank(
    cases: Annotated[Path, typer.Argument(help="file of the cases")],
    result: Annotated[Path, typer.Argument(help="written by rank 0")],
) -> None:
    """Compare layouts with the other ranks."""
    from longhaul.run.preflight.layouts import compare

    compare(cases, result)


_STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}
_NAME_WIDTH = 15


def preflight(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="worker processes, as for train", show_default="1")
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(min=1, help="processes of the real run on all its nodes, for its memory"),
    ] = None,
    device_gb: Annotated[
        float | None,
        typer.Option(min=0.1, help="memory of each device of the real run; as here when absent"),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="what takes longer is left out, by name")
    ] = 2.0,
    full: Annotated[
        bool, typer.Option("--full", help="no limit of time: longer runs, more kills and steps")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="work here and keep it all; a temporary folder otherwise"),
    ] = None,
    runs_dir: RunsFolder = RUNS,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Check RECIPE before it is trained: at its true size by arithmetic, as its small twin by runs.

    The twin has every switch of the recipe and none of its size. It is trained, killed, resumed,
    read back, and dealt out over processes.
    """
    from longhaul.run.preflight.context import Preflight
    from longhaul.run.preflight.preflight import preflight as check
    from longhaul.run.preflight.preflight import verdict

    typed = Preflight(
        recipe=recipe,
        options=tuple(overrides or ()),
        data=data,
        processes=nproc,
        world=world,
        device_bytes=None if device_gb is None else int(device_gb * 1e9),
        minutes=minutes,
        full=full,
        keep=keep,
        runs=runs_dir,
        prepared=prepared_dir,
    )
    terminal = console()
    with leaving_at_once():  # what was started is ended, and the folder goes
        made = check(typed, (lambda _: None) if as_json else lambda line: _show(terminal, line))
    code, sentence = verdict(made)
    if as_json:
        print(json.dumps(as_object(recipe, made, code, sentence), ensure_ascii=False))
    else:
        _conclude(terminal, made, sentence)
    raise typer.Exit(code)


def as_object(
    recipe: str, checks: Sequence[Check], code: ExitCode, sentence: str
) -> dict[str, Any]:
    """The report for programs."""
    lines = [asdict(check) | {"code": int(check.code)} for check in checks]
    found = {"recipe": recipe, "exit_code": int(code), "verdict": sentence, "checks": lines}
    return dict(finite_or_word(found))


def _show(terminal: Any, check: Check) -> None:
    """One line of the report; on a terminal a long figure goes on below its own beginning."""
    seconds = f"{check.seconds:.1f} s" if check.verdict != "skipped" else ""
    if not terminal.is_terminal:
        took = seconds and f"  ({seconds})"
        print(f"{check.verdict:7}  {check.name:{_NAME_WIDTH}}  {check.figure}{took}", flush=True)
        return
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2), expand=True)
    line.add_column(width=7)
    line.add_column(width=_NAME_WIDTH)
    line.add_column(ratio=1, overflow="fold")
    line.add_column(width=7, justify="right")
    verdict = Text(check.verdict, style=_STYLES[check.verdict])
    line.add_row(verdict, check.name, Text(check.figure), seconds)
    terminal.print(line)


def _conclude(terminal: Any, checks: Sequence[Check], sentence: str) -> None:
    wrong = [check for check in checks if check.verdict == "failed"]
    terminal.print()
    terminal.print(sentence, style="bold red" if wrong else "bold green", soft_wrap=True)
    for check in wrong:
        terminal.print(f"  {check.name}: {check.figure}", soft_wrap=True)
        if check.remedy:
            terminal.print(f"    → {check.remedy}", soft_wrap=True)
