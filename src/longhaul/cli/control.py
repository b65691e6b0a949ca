"""Commands of a person: `longhaul set`, `rollback`, `fork`, `stop`, `note`, `nodes`.

They write into the run's `requests/` or a node ledger; they never touch the run itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import RUNS, RunName, RunsFolder, console, reads_a_run, since
from longhaul.core.clocks import RealClock
from longhaul.core.errors import UsageError
from longhaul.logbook.folder import RunFolder, open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longhaul.config.recover import NodeSection
    from longhaul.supervise.nodes.known import Known, Word
    from longhaul.supervise.nodes.roster import LeftOut

Reason = Annotated[str, typer.Option("--reason", help="why; kept in the logbook")]
Wait = Annotated[
    float, typer.Option("--wait", help="seconds to wait for the run's answer; 0 does not")
]
Force = Annotated[
    bool, typer.Option("--force", help="request a learning rate that looks like a slip of the pen")
]


def set_setting(
    run: RunName,
    change: Annotated[str, typer.Argument(metavar="PATH=VALUE")],
    reason: Reason = "",
    force: Force = False,
    wait: Wait = 30.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Change one setting of a run at its next step boundary; a restart keeps it."""
    from longhaul.run.train.control_requests import request_set

    print(request_set(open_run(run, runs_dir), change, reason, wait, force=force))


def rollback(
    run: RunName,
    to: Annotated[int, typer.Option("--to", help="step; the newest state at or before it")],
    reason: Reason = "",
    wait: Wait = 60.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Go back to an earlier state; decisions stay. A run that rests does so when next started."""
    from longhaul.run.train.control_requests import request_rollback

    print(request_rollback(open_run(run, runs_dir), to, reason, wait))


def fork(
    run: RunName,
    at: Annotated[int, typer.Option("--at", help="step; the newest state at or before it")],
    change: Annotated[
        list[str], typer.Option("--set", metavar="PATH=VALUE", help="change a setting there")
    ] = [],  # noqa: B006 (typer reads the default and never changes it)
    reset: Annotated[
        list[str],
        typer.Option(
            "--reset",
            help="optimizer: fresh state, warmed up; schedule: the learning rate's schedule "
            "begins at that step; data: its order begins anew; loss-scale: its first value",
        ),
    ] = [],  # noqa: B006
    reason: Reason = "",
    force: Force = False,
    wait: Wait = 60.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Begin a new line of descent, with a major number of its own, at an earlier state."""
    from longhaul.run.train.control_requests import request_fork

    print(request_fork(open_run(run, runs_dir), at, change, reset, reason, wait, force))


def stop(run: RunName, reason: Reason = "", wait: Wait = 60.0, runs_dir: RunsFolder = RUNS) -> None:
    """Let a run finish its step, save, and end; `longhaul train` goes on with it."""
    from longhaul.run.train.control_requests import request_stop

    print(request_stop(open_run(run, runs_dir), reason, wait))


def note(
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT")],
    wait: Wait = 30.0,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Write a note into a run's logbook."""
    from longhaul.run.train.control_requests import request_note

    print(request_note(open_run(run, runs_dir), text, wait))


@reads_a_run
def nodes(
    where: Annotated[
        str, typer.Argument(metavar="RUN_OR_LEDGER", help="a run's name or folder, or a ledger's")
    ],
    release: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="lift its cordon; a name, or a part such as board:A17"),
    ] = None,
    cordon: Annotated[
        str | None, typer.Option(metavar="NODE", help="let nothing run on it any more")
    ] = None,
    reason: Annotated[str, typer.Option(help="why; kept in the ledger")] = "",
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Show what was seen of nodes over all runs that share a ledger; cordon one, or release it.

    A supervisor at work looks every ten seconds: it leaves a cordoned node at its next checkpoint,
    if it can do without, and probes a released one before it uses it.
    """
    from rich.table import Table

    from longhaul.logbook.lease import user_name
    from longhaul.supervise.nodes.known import find_node, known_nodes, word_on
    from longhaul.supervise.nodes.ledger import append, read

    if release and cordon:
        raise UsageError("--release and --cordon: one at a time", "give one of them")
    ledger, entries, left_out = _found(where, runs_dir)
    now = RealClock().wall()
    known = known_nodes(read(ledger), now, entries, left_out)
    name = release or cordon
    if name is None:
        if reason:
            raise UsageError("--reason: of what?", "give --release NODE or --cordon NODE with it")
        if not known:
            print(f"no node is known in {ledger}: none has been named or used")
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("node", "known by", "probes", "failures", "incidents", "used", "cordoned"):
            table.add_column(title, overflow="fold")
        for one in known:
            table.add_row(*_row(one, now))
        console().print(table)
        return
    kind: Word = "released" if release else "cordoned"
    word = word_on(find_node(known, name), name, kind, reason, user_name(), now)
    append(ledger, word)
    print(f"{word.host} is {kind} by {word.who} ({', '.join(word.parts)}): {word.reason}")


def _found(where: str, runs: Path) -> tuple[Path, Sequence[NodeSection], Sequence[LeftOut]]:
    """The folder of a ledger; of a run also its recipe's entries, and whom it has left out."""
    from longhaul.logbook.run_spec import read_run_spec
    from longhaul.supervise.nodes.history import left_out, node_events
    from longhaul.supervise.nodes.ledger import FILE_NAME

    path = Path(where)
    path = path.parent if path.name == FILE_NAME else path
    is_run = RunFolder(runs / where).exists or RunFolder(path).exists
    if not is_run and (path / FILE_NAME).is_file():
        return path, (), ()
    folder = open_run(path if RunFolder(path).exists else where, runs)
    settings = read_run_spec(folder).settings().supervise
    ledger = Path(settings.node_ledger) if settings.node_ledger else folder.path
    return ledger, settings.node, left_out(node_events(folder))


def _row(one: Known, now: float) -> tuple[str, ...]:
    probes = str(one.probes)
    if one.last_probe is not None and not one.last_probe.passed:
        probes += f", the last not passed: {one.last_probe.reason}"
    incidents = [f"{cause} ×{n}" if n > 1 else cause for cause, n in one.causes.items()]
    if one.corrected:
        incidents.append(f"{one.corrected} corrected errors of memory")
    if one.released:
        incidents.append(f"released ×{one.released}" if one.released > 1 else "released")
    used = "–" if one.used is None else since(one.used, now)
    why = [
        f"since {since(word.time, now)}{f' by {word.who}' * bool(word.who)} ({part}): {word.reason}"
        for part, word in one.cordoned.items()
    ]
    if one.left_out and not why:
        why = [f"left out by this run: {one.left_out}"]
    return (
        one.node.host, ", ".join(sorted(one.node.parts)), probes, str(sum(one.causes.values())),
        ", ".join(incidents) or "–", f"in use, {used}" if one.in_use else used,
        "; ".join(why) or "–",
    )  # fmt: skip
