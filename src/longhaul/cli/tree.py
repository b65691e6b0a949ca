"""`longhaul tree` and `longhaul report`: the story of a run, in a terminal and as a page.

Enters: a run's name or path. Leaves: text, or the page `report.html`.
Never knows: tensors; it reads the logbook only, of live, dead and finished runs alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.look import change_line
from longhaul.cli.options import RUNS, RunName, RunsFolder
from longhaul.cli.reading import reads_a_run
from longhaul.cli.shown import console

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from longhaul.logbook.summary import Branch


@reads_a_run
def tree(run: RunName, runs_dir: RunsFolder = RUNS) -> None:
    """Show a run's segments: what each went on from, what changed, how it ended, what it cost."""
    from rich.tree import Tree

    from longhaul.core.clocks import RealClock
    from longhaul.logbook.folder import open_run
    from longhaul.logbook.lease import live_holder
    from longhaul.logbook.queries import connect
    from longhaul.logbook.reading import read_journal
    from longhaul.logbook.summary import read_branches

    folder = open_run(run, runs_dir)
    events = list(read_journal(folder, steps=False))
    live = live_holder(folder, RealClock()) is not None
    with connect(folder) as connection:
        grown = read_branches(folder, connection, events, live=live)
    root = Tree(f"run {folder.name}: {_total(grown)}")
    own: dict[str, Tree] = {}
    beside: dict[str, Tree] = {}
    for branch in grown:
        parent = branch.opening.parent
        # A line of restarts stays flush, however long; only a fork indents.
        forked = parent is not None and parent.major != branch.opening.number.major
        beside[branch.number] = (own if forked else beside).get(str(parent), root)
        own[branch.number] = beside[branch.number].add(_label(branch))
    console().print(root)


@reads_a_run
def report(
    run: RunName,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="instead of the run's report.html")
    ] = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Write a run's story as one page that opens anywhere, without a network."""
    from longhaul.board.report import write_report
    from longhaul.core.clocks import RealClock
    from longhaul.core.units import short_bytes
    from longhaul.logbook.folder import open_run

    path = write_report(open_run(run, runs_dir), RealClock(), out)
    typer.echo(f"{path} ({short_bytes(path.stat().st_size)})")


def _total(grown: tuple[Branch, ...]) -> str:
    count = f"{len(grown)} segment{'' if len(grown) == 1 else 's'}"
    lost = sum(branch.steps_lost for branch in grown)
    return f"{count}, {lost:,} steps lost" if lost else count


def _label(branch: Branch) -> Text:
    from rich.text import Text

    from longhaul.core.units import short_seconds

    opening, stretch = branch.opening, branch.stretch
    begin = f"after {opening.parent}" if opening.parent else "from nothing"
    if opening.checkpoint is not None:
        begin += f", checkpoint {opening.checkpoint:,}"
    figures = f"no step after {opening.step:,}"
    cost = [short_seconds(branch.seconds)]
    if stretch is not None:
        figures = (
            f"steps {stretch.first_step:,}–{stretch.last_step:,} · loss {stretch.loss:.4f} · "
            f"lr {stretch.learning_rate:.2e}"
        )
        if stretch.redone:
            cost.append(f"{stretch.redone:,} redone")
    lines = [
        f" {' '.join(opening.reason.split())}",
        f"{figures} · {', '.join(cost)}",
        f"{begin} · attempt {opening.attempt} · {branch.ending}",
    ]
    if branch.steps_lost:
        lines.append(f"lost: {branch.steps_lost:,} steps, {short_seconds(branch.seconds_lost)}")
    lines += [change_line(path, *pair) for path, pair in opening.difference.items()]
    return Text.assemble((branch.number, "bold"), "\n  ".join(lines))
