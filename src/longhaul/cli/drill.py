"""`longhaul drill RECIPE`: break a run on purpose and see whether it survives."""

import json
import re
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import DataPath, Overrides, RecipeName, Trust
from longhaul.core.errors import ExitCode, UsageError
from longhaul.core.units import Seconds

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_NOTICES = (signal.SIGTERM, signal.SIGHUP)
Keep = Annotated[
    Path | None, typer.Option(help="run here and keep the runs; a temporary folder otherwise")
]


def drill(
    recipe: RecipeName,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:STRENGTH]@rankR:stepS",
            help="a fault to inject, such as kill@rank1:step20; may be repeated; a standard set "
            "when absent",
        ),
    ] = None,
    nproc: Annotated[
        int | None, typer.Option(min=1, help="worker processes", show_default="2")
    ] = None,
    overrides: Overrides = None,
    data: DataPath = None,
    small: Annotated[
        bool, typer.Option("--small", help="the recipe's small twin: every switch, no size")
    ] = False,
    steps: Annotated[
        int | None, typer.Option(help="length of the run", show_default="200 at most")
    ] = None,
    soak: Annotated[
        str | None, typer.Option(metavar="TIME", help="faults at random for so long, such as 10m")
    ] = None,
    mtbf: Annotated[
        str, typer.Option(metavar="TIME", help="of a soak: mean time between faults")
    ] = "20s",
    seed: Annotated[int, typer.Option(help="of a soak")] = 0,
    trust: Trust = False,
    keep: Keep = None,
    as_json: Annotated[bool, typer.Option("--json", help="the verdict as JSON")] = False,
) -> None:
    """Inject faults into a run of RECIPE, and compare its end with a run without them.

    Real processes in a temporary folder; `docs/drills.md` lists the faults. What must not change a
    byte (dead processes, full disks) has to end in the same bytes; faults in numbers within 2 % of
    the validation loss. In a soak, --fault takes names alone.
    """
    from longhaul.run.drill.plan import Typed, drill_recipe

    typed = Typed(
        recipe, tuple(fault or ()), nproc, tuple(overrides or ()), data, small, steps,
        None if soak is None else seconds_in("--soak", soak), seconds_in("--mtbf", mtbf), seed,
        trust,
    )  # fmt: skip
    with drill_folder(keep) as folder:
        verdicts = drill_recipe(typed, folder, partial(typer.echo, err=as_json))
    passed = all(verdict.passed for verdict in verdicts)
    if as_json:
        body = {"passed": passed, "runs": [verdict.as_data() for verdict in verdicts]}
        print(json.dumps(body, indent=2))
    else:
        print("PASSED" if passed else "FAILED")
    raise typer.Exit(0 if passed else 1)


@contextmanager
def drill_folder(keep: Path | None) -> Iterator[Path]:
    """The folder of a drill's runs. A notice ends in the body what was started, as Ctrl-C does."""
    from longhaul.core.signals import handled

    def leave(number: int, frame: object) -> None:
        raise typer.Exit(ExitCode.INTERRUPTED)

    with handled(_NOTICES, leave):
        if keep is not None:
            yield keep
            return
        with tempfile.TemporaryDirectory(prefix="longhaul-drill-") as temporary:
            yield Path(temporary)


def seconds_in(option: str, text: str) -> Seconds:
    """`10m`, `20s`, `0.5h` or `45` in seconds; UsageError where it is none of these."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"{option} {text}: no duration", "write it like 20s, 10m or 1h")
    return seconds
