"""`longhaul drill`: break a run on purpose and see whether it survives."""

import json
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from longhaul.cli.common import DataPath, Overrides, RecipeName
from longhaul.core.errors import ExitCode, UsageError
from longhaul.core.units import Seconds

OF_RECIPE = "RECIPE"
"""Name of the command that takes whatever is none."""
_HELP = ("--help",)


class DrillGroup(TyperGroup):
    """A group whose first word is one of its commands, or else a recipe."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As ever, once the command of a recipe was put before a recipe."""
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = [OF_RECIPE, *args]
        return list(super().parse_args(ctx, args))


class OfRecipe(TyperCommand):
    """That command: its name stands where the recipe's own will."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Leaves its argument out, which is there already."""
        return ["[OPTIONS]"]


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_NOTICES = (signal.SIGTERM, signal.SIGHUP)
Keep = Annotated[
    Path | None, typer.Option(help="run here and keep the runs; a temporary folder otherwise")
]
app = typer.Typer(
    cls=DrillGroup,
    help="Break a run on purpose and see whether it survives: a run of yours (RECIPE), or the "
    "incidents that others have had.",
    no_args_is_help=True,
)


@app.command(OF_RECIPE, cls=OfRecipe)
def of_recipe(
    recipe: RecipeName,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:STRENGTH]@rankR:stepS",
            help="what befalls it, such as kill@rank1:step20; may be repeated; a standard set "
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
        str | None,
        typer.Option(metavar="TIME", help="faults at random for so long, such as 10m"),
    ] = None,
    mtbf: Annotated[
        str, typer.Option(metavar="TIME", help="of a soak: mean time between faults")
    ] = "20s",
    seed: Annotated[int, typer.Option(help="of a soak")] = 0,
    keep: Keep = None,
    as_json: Annotated[bool, typer.Option("--json", help="the verdict as JSON")] = False,
) -> None:
    """Let faults befall a run of RECIPE, and compare its end with the same run left alone.

    Real processes in a room of their own; `docs/drills.md` lists the faults. What must not change
    a byte (dead processes, full disks) has to end in the same bytes; faults in numbers within 2 %
    of the validation loss. In a soak, --fault takes names alone.
    """
    from longhaul.run.drill.plan import Typed, drill_recipe

    typed = Typed(
        recipe, tuple(fault or ()), nproc, tuple(overrides or ()), data, small, steps,
        None if soak is None else _seconds("--soak", soak), _seconds("--mtbf", mtbf), seed,
    )  # fmt: skip
    say = _to_stderr if as_json else _to_stdout
    with _room(keep) as room:
        verdicts = drill_recipe(typed, room, say)
    passed = all(verdict.passed for verdict in verdicts)
    if as_json:
        body = {"passed": passed, "runs": [verdict.as_data() for verdict in verdicts]}
        print(json.dumps(body, indent=2))
    else:
        print("PASSED" if passed else "FAILED")
    raise typer.Exit(0 if passed else 1)


@app.command()
def resume(
    kills: Annotated[int, typer.Option(min=1, help="how often the run is killed")] = 20,
    seed: Annotated[int, typer.Option(help="of the moments at which it is killed")] = 0,
    overrides: Overrides = None,
    keep: Keep = None,
) -> None:
    """SIGKILL a run at random moments; compare what remains with an undisturbed run, byte by byte.

    Saves, evaluations and starts are among the moments. The recipe is small and has gradient
    accumulation, a curriculum, dropout, a skipped range of data and an override in the ledger.
    """
    from longhaul.run.drill.resume import drill_resume

    verdict = drill_resume(kills, seed, tuple(overrides or ()), keep, print)
    raise typer.Exit(0 if verdict else 1)


@app.command()
def numbers(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[N1 …]", help="which drills; all when absent")
    ] = None,
    blind: Annotated[
        bool, typer.Option("--blind", help="with a judgement that finds nothing: they must fail")
    ] = False,
    keep: Keep = None,
) -> None:
    """Inject each fault of the incident book, N1 to N15, and each harmless disturbance, H1 to H7.

    Every run must end by itself as the book says, and nothing harmless may trigger anything.
    """
    from longhaul.run.drill.numbers import drill_numbers

    with _room(keep) as room:
        verdict = drill_numbers(names or (), room, print, blind=blind)
    raise typer.Exit(0 if verdict else 1)


@app.command()
def machines(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[M1 …]", help="which drills; all when absent")
    ] = None,
    blind: Annotated[
        bool,
        typer.Option("--blind", help="with what should answer taken away: they must fail"),
    ] = False,
    keep: Keep = None,
) -> None:
    """Hit real runs as the incident book tells of it, M1 to M18 and S1 to S7: a quarter of an hour.

    Every run must end by itself, at the right step, in the bytes of the same run left alone, with
    the right story in its journal, and leave nothing behind.
    """
    from longhaul.run.drill.machines import drill_machines

    with _room(keep) as room:
        verdict = drill_machines(names or (), room, print, blind=blind)
    raise typer.Exit(0 if verdict else 1)


@app.command()
def recovery(keep: Keep = None) -> None:
    """Let three things befall a run, and compare its end with the same run left alone."""
    from longhaul.run.drill.recovery import drill_recovery

    with _room(keep) as room:
        verdict = drill_recovery(room, print)
    raise typer.Exit(0 if verdict else 1)


@app.command()
def preempt(
    signals: Annotated[int, typer.Option(min=1, help="how often the run is told to stop")] = 100,
    seed: Annotated[int, typer.Option(help="of the moments, the signals and whom they hit")] = 0,
    overrides: Overrides = None,
    keep: Keep = None,
) -> None:
    """Tell a run to stop at random moments by SIGTERM, SIGUSR1 and SIGUSR2, as schedulers do.

    Each time it must end with 16 and have lost one step at most; its end is compared with an
    undisturbed run, byte by byte. One signal in eight hits a run of two processes.
    """
    from longhaul.run.drill.preempt import drill_preempt

    with _room(keep) as room:
        verdict = drill_preempt(signals, seed, room, _to_stdout, tuple(overrides or ()))
    raise typer.Exit(0 if verdict else 1)


@app.command()
def replicas(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="a tiny one when absent")
    ] = None,
    replicas: Annotated[
        int, typer.Option("--replicas", min=2, help="how many; each has parallel.shard processes")
    ] = 3,
    minutes: Annotated[float, typer.Option(help="for so long replicas are killed")] = 5.0,
    every: Annotated[
        str, typer.Option(metavar="TIME", help="mean time between a return and the next kill")
    ] = "60s",
    seed: Annotated[int, typer.Option(help="of the moments and of whom they hit")] = 0,
    overrides: Overrides = None,
    data: DataPath = None,
    small: Annotated[
        bool, typer.Option("--small", help="the recipe's small twin: every switch, no size")
    ] = False,
    keep: Keep = None,
) -> None:
    """SIGKILL one replica after the other, at random, while the others train on (extra `ft`).

    Each must be healed by a peer, nobody else may stop or be started again, every step must be
    made once, and every loss must be that of the same run by one process, but for rounding.
    """
    from longhaul.run.drill.replicas import Typed, drill_replicas

    typed = Typed(
        recipe, replicas, minutes * 60, _seconds("--every", every), seed,
        tuple(overrides or ()), data, small,
    )  # fmt: skip
    with _room(keep) as room:
        verdict = drill_replicas(typed, room, _to_stdout)
    for line in verdict.lines():
        print(line)
    print("PASSED" if verdict.passed else "FAILED")
    raise typer.Exit(0 if verdict.passed else 1)


@contextmanager
def _room(keep: Path | None) -> Iterator[Path]:
    with _leaving_nothing():
        if keep is not None:
            yield keep
            return
        with tempfile.TemporaryDirectory(prefix="longhaul-drill-") as room:
            yield Path(room)


def _seconds(option: str, text: str) -> Seconds:
    """`10m`, `20s`, `0.5h` or `45` in seconds.

    Raises:
        UsageError: it is none of these.
    """
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if seconds <= 0:
        raise UsageError(f"{option} {text}: no time", "write it like 20s, 10m or 1h")
    return seconds


@contextmanager
def _leaving_nothing() -> Iterator[None]:
    """A drill that is told to end ends what it has started, as it does after Ctrl-C."""
    from longhaul.core.signals import handled

    def leave(number: int, frame: object) -> None:
        raise typer.Exit(ExitCode.INTERRUPTED)

    with handled(_NOTICES, leave):
        yield


def _to_stdout(line: str) -> None:
    print(line, flush=True)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
