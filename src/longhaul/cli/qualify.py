"""`longhaul qualify`: whether the machine that was sold is fit; and `longhaul evidence`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import console
from longhaul.core.errors import UsageError

if TYPE_CHECKING:
    from longhaul.cluster.qualify.outcome import Outcome

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "not applicable": "dim"}
_COMPARE = "compare"
_OUT = Path("qualify")


def qualify(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE | compare A.json B.json]",
            help="a recipe, for its checkpoint's time and remote tier; or two outcomes to compare",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="under about half a minute")] = False,
    checks: Annotated[
        str, typer.Option(metavar="GROUPS", help="compute,memory,links,storage,host; all if absent")
    ] = "",
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="whose medium is measured: where runs will lie")
    ] = Path(),
    remote: Annotated[
        list[str] | None, typer.Option(metavar="ADDRESS", help="a remote tier; may be repeated")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="of load on each device", show_default="2; quick: 2 seconds"),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="gets reports, outcome, and history without --ledger"),
    ] = _OUT,
    ledger: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="the node ledger; the recipe's, or --out, when absent"),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write the outcome there too")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write one self-contained HTML page")
    ] = None,
    deadline: Annotated[
        float, typer.Option(min=1.0, help="seconds for any exchange between ranks")
    ] = 30.0,
    meet: Annotated[
        float, typer.Option(min=1.0, help="seconds within which all ranks must have come")
    ] = 120.0,
    price: Annotated[
        list[float] | None,
        typer.Option(min=0.0, help="compare: dollars for a device and an hour; once, or for each"),
    ] = None,
) -> None:
    """Measure this machine, or under torchrun, srun or mpirun all of them, and say if it is fit.

    Each check gives the value, what was expected and its source, a verdict and a remedy. Ends with
    0 if nothing failed, 17 if something did.
    """
    from longhaul.cluster.qualify.records import groups_named
    from longhaul.run.qualify.qualify import Asked
    from longhaul.run.qualify.qualify import qualify as check

    given = list(words or ())
    if given[:1] == [_COMPARE]:
        _compare([Path(word) for word in given[1:]], list(price or ()))
        return
    if len(given) > 1:
        raise UsageError(f"{given[1]}: one recipe at a time", "longhaul qualify [RECIPE]")
    asked = Asked(
        recipe=given[0] if given else None,
        groups=groups_named(checks),
        quick=quick,
        folder=folder,
        remote=tuple(remote or ()),
        out=out,
        ledger=ledger,
        json=json_file,
        page=page,
        minutes=minutes,
        deadline_s=deadline,
        meet_s=meet,
    )
    result = check(asked, lambda line: typer.echo(line, err=True))
    if result.outcome is not None:
        _show(result.outcome)
        for note in result.notes:
            typer.echo(note, err=True)
    if result.ranks > 1:
        # A thread of a broken process group would be waited for; nothing of it is needed any more.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(result.code)
    raise typer.Exit(result.code)


def _show(outcome: Outcome) -> None:
    """All checks as a table, then what failed with its remedy, then the verdict."""
    from rich.table import Table
    from rich.text import Text

    from longhaul.cluster.qualify.comparing import figure

    terminal = console()
    if not terminal.is_terminal:
        for check in outcome.checks:
            where = " ".join(filter(None, (check.node, check.device)))
            said = check.expected or check.reason
            line = f"{check.verdict:14}  {check.name:16}  {where:24}  "
            print(f"{line}{figure(check.value, check.unit):>14}  {said}")
        _conclude(outcome)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("verdict", "check", "where", "measured", "expected"):
        table.add_column(title, overflow="fold")
    for check in outcome.checks:
        where = " ".join(filter(None, (check.node, check.device)))
        expected = check.expected or check.reason
        verdict = Text(check.verdict, style=_STYLES[check.verdict])
        table.add_row(verdict, check.name, where, figure(check.value, check.unit), expected)
    terminal.print(table)
    _conclude(outcome)


def _conclude(outcome: Outcome) -> None:
    terminal = console()
    for check in outcome.findings:
        terminal.print(f"{check.verdict}: {check.reason}", soft_wrap=True)
        terminal.print(f"  expected: {check.expected} [{check.source}]", soft_wrap=True)
        terminal.print(f"  → {check.remedy}", soft_wrap=True)
    if outcome.save_s is not None and outcome.interval_s is not None:
        terminal.print(
            f"a checkpoint of the recipe takes {outcome.save_s:.3g} s: save about every "
            f"{outcome.interval_s / 60:.3g} minutes",
            soft_wrap=True,
        )
    terminal.print(outcome.sentence(), style="green" if outcome.passed else "bold red")


def _compare(paths: list[Path], prices: list[float]) -> None:
    from rich.table import Table

    from longhaul.cluster.qualify.comparison import compare
    from longhaul.run.qualify.qualify import read_outcome

    if len(paths) < 2:
        raise UsageError(
            "compare: two outcomes are needed", "longhaul qualify compare A.json B.json"
        )
    if prices and len(prices) not in (1, len(paths)):
        raise UsageError(f"--price: {len(prices)} for {len(paths)} outcomes", "give one for each")
    each = prices * len(paths) if len(prices) == 1 else prices
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", *map(str, paths)):
        table.add_column(title, overflow="fold")
    for row in compare([read_outcome(path) for path in paths], each):
        cells = [f"{cell} *" if place == row.better else cell
                 for place, cell in enumerate(row.cells)]  # fmt: skip
        table.add_row(row.title, *cells)
    console().print(table)


def evidence(
    node: Annotated[str, typer.Argument(help="a node's name, or a part such as board:A17")],
    out: Annotated[
        Path,
        typer.Option("--from", metavar="DIR", help="what `longhaul qualify --out` has written"),
    ] = _OUT,
    ledger: Annotated[
        Path | None, typer.Option(metavar="DIR", help="the node ledger; --from when absent")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="the bundle; NODE-evidence.tar.gz")
    ] = None,
) -> None:
    """Bundle what speaks against NODE for its provider: figures, history, a script to reproduce it.

    No secret, no path of a user and no other node's name is in it.
    """
    from longhaul.run.qualify.evidence import bundle

    target = file if file is not None else Path(f"{node.replace('/', '_')}-evidence.tar.gz")
    for name in bundle(node, out, ledger if ledger is not None else out, target):
        typer.echo(f"  {name}")
    typer.echo(f"written: {target}")
