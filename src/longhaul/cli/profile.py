"""`longhaul profile RECIPE`: where the time of a training step goes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import (
    PREPARED,
    DataPath,
    Device,
    Overrides,
    PreparedFolder,
    RecipeName,
    Trust,
    console,
    options_of,
)
from longhaul.core.records import finite_or_word
from longhaul.core.signals import leaving_at_once

if TYPE_CHECKING:
    from longhaul.plan.profile import Profile

_MOST_ROWS = 8


def profile(
    recipe: RecipeName,
    data: DataPath = None,
    overrides: Overrides = None,
    device: Device = None,
    small: Annotated[
        bool, typer.Option("--small", help="the recipe's small twin: every switch, no size")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="steps to watch, after three others")] = 10,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="for trace and page", show_default="profiles/ and the name"
        ),
    ] = None,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Train RECIPE for a few steps, and say where the time of one goes.

    Time by stage, the largest operations against what this device can do at best, what costs more
    than its work explains, with a remedy; a trace for Perfetto, and a page with pictures.
    """
    from longhaul.run.profile.profile import Typed
    from longhaul.run.profile.profile import profile as take

    options = options_of(recipe, data, overrides, device, small)
    typed = Typed(recipe, tuple(options), data, steps, out, prepared_dir, trust)
    with leaving_at_once():  # the run's folder goes
        made = take(typed, partial(typer.echo, err=as_json))
        from longhaul.board.profile import write_page

        write_page(made)
    if as_json:
        print(json.dumps(finite_or_word(made.as_data()), ensure_ascii=False))
    else:
        show(made)


def show(made: Profile) -> None:
    """What a terminal is shown."""
    from rich.table import Table
    from rich.text import Text

    from longhaul.board.profile import in_short
    from longhaul.core.units import sentence
    from longhaul.plan.profile import PAGE, TRACE
    from longhaul.plan.surprises import plain, short_time

    terminal, timeline = console(), made.timeline
    terminal.print(
        f"\n{in_short(made)} While watched, {short_time(made.step_s)}; {made.gauge_steps} of "
        f"{timeline.steps} steps read gauges.\n",
        soft_wrap=True,
    )
    stages = Table("stage", box=None, pad_edge=False)
    for title in ("a step", "share"):
        stages.add_column(title, justify="right")
    for stage, seconds in timeline.stages.items():
        each = short_time(seconds / timeline.steps) if seconds else "–"
        stages.add_row(stage, each, f"{seconds / timeline.seconds:.1%}")
    terminal.print(stages)
    largest = Table("\noperation", "\nshapes", box=None, pad_edge=False)
    for title in ("\ncalls", "\na step", "\nshare", "of the\nroofline"):
        largest.add_column(title, justify="right")
    largest.add_column("\nbound by")
    for row in made.rows[:_MOST_ROWS]:
        roofline = (f"{row.achieved:.0%}", row.bound) if row.attainable else ("–", "")
        largest.add_row(plain(row.name), row.shapes, f"{row.calls:.4g}", short_time(row.seconds),
                        f"{row.share:.1%}", *roofline)  # fmt: skip
    terminal.print(largest)
    terminal.print("\nwhat costs more than it should" if made.surprises else "\nno surprises")
    for number, one in enumerate(made.named(), 1):
        head = f"{number}. {short_time(one.seconds)} a step: "
        terminal.print(Text(head, style="bold") + Text(sentence(one.sentence)), soft_wrap=True)
        terminal.print(f"   → {one.remedy}", soft_wrap=True)
    print(
        f"\ntrace: {made.folder / TRACE} (open it in ui.perfetto.dev)\npage: {made.folder / PAGE}"
    )
