"""Studies of a recipe: `longhaul profile`, where the time of a training step goes, and
`longhaul ladder`, whether it scales.
"""

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
    from longhaul.run.profile.profile import profile as take
    from longhaul.run.train.launch import Start

    options = tuple(options_of(recipe, data, overrides, device, small))
    typed = Start(recipe, options, data, prepared=prepared_dir, trust=trust)
    with leaving_at_once():  # the run's folder goes
        made = take(typed, steps, out, partial(typer.echo, err=as_json))
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
        f"\n{in_short(made)} While watched, {short_time(made.step_s)}; {made.seen.gauge_steps} of "
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
    from longhaul.plan.ladder.analysis import as_markdown
    from longhaul.run.ladder.ladder import LadderRequest, run_ladder

    own = () if device is None else (f'machine.device="{device}"',)
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
    with leaving_at_once():
        analysis = run_ladder(typed, lambda line: print(line, flush=True))
    if analysis is not None:
        print(f"\n{as_markdown(analysis)}", end="")
