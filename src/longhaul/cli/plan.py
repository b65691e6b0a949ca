"""`longhaul plan`: what a recipe takes on devices that you do not have yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import RUNS, Overrides, RecipeName, RunsFolder, console
from longhaul.core.records import finite_or_word
from longhaul.core.units import figure, short_bytes

if TYPE_CHECKING:
    from longhaul.plan.bill import Figure
    from longhaul.run.plan.plan import Plan


def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="devices of all nodes", show_default="machine.processes"),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="a known device, such as a100-80 or h100", show_default="this one"),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0.0, help="money for a GPU-hour; no bill without it")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="fit this device's efficiency to a run's journal first"),
    ] = None,
    calibration_file: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="FILE",
            help="where fits are kept",
            show_default="calibration.json in the folder of runs",
        ),
    ] = None,
    layouts: Annotated[int, typer.Option(min=1, help="layouts to list")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Say what RECIPE takes: memory, the fastest layouts that fit, days, money, failures.

    By arithmetic: nothing is trained. Each number says whether it was measured, published or
    assumed. `docs/planning.md` holds the arithmetic against published runs.
    """  # fmt: skip
    from longhaul.run.plan.plan import PlanRequest, make_plan

    made = make_plan(
        PlanRequest(
            recipe=recipe,
            options=tuple(overrides or ()),
            gpus=gpus,
            gpu=gpu,
            price=price,
            calibrate=calibrate,
            calibration_file=calibration_file or runs_dir / "calibration.json",
            runs=runs_dir,
        )
    )
    if as_json:
        print(json.dumps(finite_or_word(made.as_data(layouts)), ensure_ascii=False))
    else:
        _show(made, layouts)


def _show(made: Plan, most: int) -> None:
    from rich.table import Table

    terminal = console()
    best = made.candidates[0]
    terminal.print(
        f"{made.recipe} on {made.gpus} × {made.device.key} ({made.device_basis}), "
        f"products in {made.element}",
        soft_wrap=True,
    )
    for line in (*made.model, made.efficiency):
        terminal.print(_line(line), soft_wrap=True)
    table = Table("#", "layout", "sequences", "recompute", "memory", "step", "MFU", box=None)
    for number, one in enumerate(made.candidates[:most], 1):
        share = "n/a" if one.mfu is None else f"{one.mfu:.1%}"
        table.add_row(
            str(number), one.dealt, str(one.micro_sequences), one.recompute,
            short_bytes(one.memory_bytes), f"{one.time.total:.3g} s", share,
        )  # fmt: skip
    terminal.print(f"\n{len(made.candidates)} layouts fit; step times are {made.step_basis}:")
    terminal.print(table)
    kinds = ", ".join(f"{kind} {short_bytes(size)}" for kind, size in best.memory.items() if size)
    terminal.print(f"\nmemory of 1 (counted; fragmentation assumed): {kinds}", soft_wrap=True)
    shares = ", ".join(
        f"{name.replace('_', ' ')} {seconds / best.time.total:.0%}"
        for name, seconds in best.time.parts.items()
        if seconds >= 0.005 * best.time.total
    )
    terminal.print(f"time of 1: {shares}", soft_wrap=True)
    settings = " ".join(f"--set {path}={value}" for path, value in best.settings.items())
    terminal.print(f"train it so: {settings}\n", soft_wrap=True)
    for line in made.bill:
        terminal.print(_line(line), soft_wrap=True)


def _line(one: Figure) -> str:
    value = f"{one.value:.3g}" if one.value and abs(one.value) >= 1e6 else figure(one.value, 3)
    said = f"{one.name}: {value} {one.unit}".rstrip()
    return f"{said}  [{one.basis}{'; ' + one.source if one.source else ''}]"
