"""`longhaul nodes`: what was seen of nodes, and a person's word on one of them.

Enters: a run or a node ledger. Leaves: a table; a line in the ledger, on the medium.
Never knows: what follows; supervisors read the ledger themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.options import RUNS, RunsFolder
from longhaul.cli.reading import reads_a_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from longhaul.config.recover import NodeSection
    from longhaul.supervise.nodes.known import Known, Word
    from longhaul.supervise.nodes.roster import LeftOut


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
    from longhaul.core.clocks import RealClock
    from longhaul.core.errors import UsageError
    from longhaul.logbook.lease import user_name
    from longhaul.supervise.nodes.known import find_node, known_nodes, word_on
    from longhaul.supervise.nodes.ledger import append, read

    if release and cordon:
        raise UsageError("--release and --cordon: one word at a time", "give one of them")
    ledger, entries, left_out = _found(where, runs_dir)
    now = RealClock().wall()
    known = known_nodes(read(ledger), now, entries, left_out)
    name = release or cordon
    if name is None:
        if reason:
            raise UsageError("--reason: of what?", "give --release NODE or --cordon NODE with it")
        _print(known, ledger, now)
        return
    kind: Word = "released" if release else "cordoned"
    word = word_on(find_node(known, name), name, kind, reason, user_name(), now)
    append(ledger, word)
    print(f"{word.host} is {kind} by {word.who} ({', '.join(word.parts)}): {word.reason}")


def _found(where: str, runs: Path) -> tuple[Path, Sequence[NodeSection], Sequence[LeftOut]]:
    """The folder of a ledger; of a run also its recipe's entries, and whom it has left out."""
    from longhaul.logbook.folder import RunFolder, open_run
    from longhaul.logbook.run_spec import read_asked
    from longhaul.supervise.nodes.history import left_out, node_events
    from longhaul.supervise.nodes.ledger import FILE_NAME

    path = Path(where)
    path = path.parent if path.name == FILE_NAME else path
    is_run = RunFolder(runs / where).exists or RunFolder(path).exists
    if not is_run and (path / FILE_NAME).is_file():
        return path, (), ()
    folder = open_run(path if RunFolder(path).exists else where, runs)
    asked = read_asked(folder).settings().supervise
    ledger = Path(asked.node_ledger) if asked.node_ledger else folder.path
    return ledger, asked.node, left_out(node_events(folder))


def _print(known: Sequence[Known], ledger: Path, now: float) -> None:
    from rich.table import Table

    from longhaul.cli.shown import console

    if not known:
        print(f"no node is known in {ledger}: none has been named or used")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("node", "known by", "probes", "failures", "incidents", "used", "cordoned"):
        table.add_column(title, overflow="fold")
    for one in known:
        table.add_row(*_row(one, now))
    console().print(table)


def _row(one: Known, now: float) -> tuple[str, ...]:
    from longhaul.cli.look import since

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
        one.node.host, ", ".join(sorted(one.node.parts)), probes, str(one.failures),
        ", ".join(incidents) or "–", f"in use, {used}" if one.in_use else used,
        "; ".join(why) or "–",
    )  # fmt: skip
