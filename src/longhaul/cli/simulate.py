"""`longhaul simulate`: what failures will cost a run, before it starts."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import Overrides
from longhaul.core.signals import leaving_at_once


def simulate(
    recipe: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="a recipe's name or a .toml file")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="a published run in a recipe's place, as it was and under longhaul: opt-175b, "
            "llama-3-405b",
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that train")] = None,
    days: Annotated[
        float | None,
        typer.Option(help="days to simulate", show_default="the preset's, or until the last step"),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="runs, each with other luck")] = 8,
    spares: Annotated[
        int | None,
        typer.Option(min=0, help="nodes that wait", show_default="as many as are in repair"),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="whose failure rates: opt-175b, llama-3-405b, bloom-176b",
            show_default="the preset's own; Llama 3's",
        ),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(help="of a step", show_default="40 % of an H100's peak, assumed"),
    ] = None,
    overrides: Overrides = None,
    vary: Annotated[
        bool, typer.Option("--vary", help="vary each assumed input over its span too; minutes")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a page with pictures")
    ] = None,
) -> None:
    """Simulate RECIPE, or a published run, on nodes that fail at published rates.

    Failures, repairs, saves and incidents happen at random; what follows them is decided by the
    code that decides in a live run. Nothing is trained.
    """
    from longhaul.core.errors import UsageError
    from longhaul.run.simulate import (
        SimulateRequest,
        require_simpy,
        scenarios_of,
        simulated,
        varied,
        words,
    )

    for name, value in (("--days", days), ("--step-seconds", step_seconds)):
        if value is not None and not 0 < value < 1e6:
            raise UsageError(f"{name} {value:g}: is not above 0", "give a positive number")
    asked = SimulateRequest(
        recipe=recipe, preset=preset, options=tuple(overrides or ()), gpus=gpus, days=days,
        seeds=seeds, spares=spares, rates=rates, step_s=step_seconds,
    )  # fmt: skip
    say = partial(print, flush=True, file=sys.stderr)
    require_simpy()
    scenarios = scenarios_of(asked)
    with leaving_at_once():
        results = simulated(scenarios, seeds, say)
        swings = varied(scenarios[0], seeds, say) if vary else []
    if page is not None:
        from longhaul.board.simulation import write_page

        write_page(page, results, swings)
    if as_json:
        body = {"results": [result.as_json() for result in results]}
        if swings:
            body["swings"] = [
                {"input": s.name, "low": s.low, "high": s.high, "source": s.given.source}
                for s in swings
            ]
        print(json.dumps(body, indent=2))
        return
    for result in results:
        for line in words(result):
            print(line)
    for swing in swings:
        print(f"  {swing.name}: {swing.low:.1%} at {swing.given.low:g} {swing.given.unit}, "
              f"{swing.high:.1%} at {swing.given.high:g} {swing.given.unit}")  # fmt: skip
    if page is not None:
        print(f"page: {page}")
