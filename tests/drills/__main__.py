"""The acceptance drills (`make drills-machines` and the like): `python -m drills NAME …`."""

from typing import Annotated

import typer

from longhaul.cli.common import DataPath, Overrides, leaving_in_order
from longhaul.cli.drill import Keep, drill_folder, seconds_in

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[M1 …]", help="which rows; all when absent")
]
Blind = Annotated[
    bool, typer.Option("--blind", help="with what should answer taken away: they must fail")
]
Seed = Annotated[int, typer.Option(help="of the moments, and of whom they hit")]


def say(line: str) -> None:
    print(line, flush=True)


def leave(passed: bool) -> None:
    raise typer.Exit(0 if passed else 1)


@app.command()
def numbers(names: Names = None, blind: Blind = False, keep: Keep = None) -> None:
    """Inject each fault of the incident book, N1 to N15, and each harmless disturbance, H1 to H7.

    Every run must end by itself as the book says, and nothing harmless may trigger anything.
    """
    from drills.numbers import drill_numbers

    with drill_folder(keep) as room:
        leave(drill_numbers(names or (), room, say, blind=blind))


@app.command()
def machines(names: Names = None, blind: Blind = False, keep: Keep = None) -> None:
    """Hit real runs as the incident book tells of it, M1 to M18 and S1 to S7: a quarter of an hour.

    Every run must end by itself, at the right step, in the bytes of the same run left alone, with
    the right story in its journal, and leave nothing behind.
    """
    from drills.machines import drill_machines

    with drill_folder(keep) as room:
        leave(drill_machines(names or (), room, say, blind=blind))


@app.command()
def qualify(names: Names = None, keep: Keep = None) -> None:
    """Inject each fault that `longhaul qualify` must find, Q1 to Q12; H: ten healthy batteries."""
    from drills.qualification import drill_qualify

    with drill_folder(keep) as room:
        leave(drill_qualify(names or (), room, say))


@app.command()
def recovery(keep: Keep = None) -> None:
    """Let three things befall a run, and compare its end with the same run left alone."""
    from drills.recovery import drill_recovery

    with drill_folder(keep) as room:
        leave(drill_recovery(room, say))


@app.command()
def resume(
    kills: Annotated[int, typer.Option(min=1, help="how often the run is killed")] = 20,
    seed: Seed = 0,
    overrides: Overrides = None,
    keep: Keep = None,
) -> None:
    """SIGKILL a run at random moments; compare its end with an undisturbed run, byte by byte."""
    from drills.resume import drill_resume

    with drill_folder(keep) as room:
        leave(drill_resume(kills, seed, room, say, tuple(overrides or ())))


@app.command()
def preempt(
    signals: Annotated[int, typer.Option(min=1, help="how often the run is told to stop")] = 100,
    seed: Seed = 0,
    overrides: Overrides = None,
    keep: Keep = None,
) -> None:
    """Tell a run to stop at random moments by SIGTERM, SIGUSR1 and SIGUSR2, as schedulers do.

    Each time it must end with 16 and have lost one step at most; its end is compared with an
    undisturbed run, byte by byte. One signal in eight hits a run of two processes.
    """
    from drills.preempt import drill_preempt

    with drill_folder(keep) as room:
        leave(drill_preempt(signals, seed, room, say, tuple(overrides or ())))


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
    seed: Seed = 0,
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
    from drills.replicas import Typed, drill_replicas

    typed = Typed(
        recipe, replicas, minutes * 60, seconds_in("--every", every), seed,
        tuple(overrides or ()), data, small,
    )  # fmt: skip
    with drill_folder(keep) as room:
        verdict = drill_replicas(typed, room, say)
    for line in verdict.lines():
        say(line)
    say("PASSED" if verdict.passed else "FAILED")
    leave(verdict.passed)


if __name__ == "__main__":
    with leaving_in_order():
        raise typer.Exit(app(standalone_mode=False) or 0)
