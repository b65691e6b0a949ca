"""Commands that read runs, live, dead or finished, of which they see only the logbook.

`runs`, `log`, `diff`, `compact`, `tree`, `report`; `sample` loads a checkpoint too.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import RUNS, RunName, RunsFolder, console, reads_a_run, since
from longhaul.cli.move import Clusters, Here, print_all
from longhaul.core.clocks import RealClock
from longhaul.core.errors import LonghaulError, UsageError
from longhaul.core.records import Event
from longhaul.core.units import count, short_bytes, short_seconds
from longhaul.logbook.description import arrow, readable_line, short_value
from longhaul.logbook.folder import RunFolder, list_runs, open_run
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.reading import read_journal, read_last

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text
    from rich.tree import Tree

    from longhaul.logbook.segments import SegmentOpening
    from longhaul.logbook.summary import Branch, RunSummary


@reads_a_run
def runs(
    everywhere: Annotated[
        bool, typer.Option("--all", help="those of every cluster in clusters.toml")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", help="seconds for a cluster to answer, with --all")
    ] = 30.0,
    here: Here = None,
    clusters: Clusters = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """List the runs: state, progress, losses, goodput."""
    if everywhere:
        print_all(clusters, here, runs_dir, wait)
        return
    from rich.table import Table

    from longhaul.logbook.moves import move_of
    from longhaul.logbook.summary import summarize

    clock = RealClock()
    folders = list_runs(runs_dir)
    if not folders:
        typer.echo(f"no runs in {runs_dir}/; `longhaul train RECIPE` starts one")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run", overflow="fold", min_width=12)
    table.add_column("state")
    for title in ("step", "loss", "val loss", "segments", "goodput", "last seen"):
        table.add_column(title, justify="right")
    for folder in folders:
        try:
            row = _summary_row(summarize(folder, clock), clock.wall())
            if (move := move_of(folder)) is not None:
                row[1] = f"to {move.destination}" if move.state != "arriving" else move.state
            table.add_row(*row)
        except Exception:  # noqa: BLE001 (one broken folder must not hide the others)
            table.add_row(folder.name, "unreadable")
    console().print(table)


@reads_a_run
def log(
    run: RunName,
    last: Annotated[int, typer.Option(min=1, help="how many lines")] = 20,
    events: Annotated[bool, typer.Option("--events", help="events and decisions only")] = False,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Show the last steps, events and decisions of a run."""
    folder = open_run(run, runs_dir)
    records = read_last(folder, last, steps=not events)
    if not records:
        typer.echo(f"run {folder.name}: nothing in its journal yet")
    for record in records:
        typer.echo(readable_line(record))


@reads_a_run
def diff(
    run: RunName,
    old: Annotated[str | None, typer.Argument(metavar="[A]", help="a segment")] = None,
    new: Annotated[
        str | None, typer.Argument(metavar="[B]", help="another; the last when absent")
    ] = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Show what differs between two segments, and between the recipe and what is in force."""
    from longhaul.logbook import segments as of

    folder = open_run(run, runs_dir)
    segments = of.by_opening(of.read_segments(folder))
    if not segments:
        why = f"run {folder.name}: has no segments yet"
        raise UsageError(why, "it has one once training begins")
    b = of.find_segment(folder, new) if new else segments[-1]
    a = of.find_segment(folder, old) if old else segments[-2] if len(segments) > 1 else None
    if a is None:
        typer.echo(f"run {folder.name} has one segment, {b.number}: none to compare it with")
    else:
        typer.echo(f"segment {a.number} → {b.number}   ({b.reason})")
        for section, found in of.segment_differences(a, b).items():
            typer.echo(f"{section}: {'' if found else 'the same'}".rstrip())
            for path, pair in found.items():
                typer.echo(f"  {path}: {arrow(*pair)}")
    typer.echo("")
    _print_drift(folder, segments)
    _print_live(folder)


@reads_a_run
def compact(run: RunName, runs_dir: RunsFolder = RUNS) -> None:
    """Copy closed journal files to Parquet, for fast questions; the JSON lines stay."""
    from longhaul.logbook import queries

    folder = open_run(run, runs_dir)
    try:
        done = queries.compact(folder, RealClock())
    except OSError as error:
        raise LonghaulError(f"{folder.compacted}: cannot be written: {error}") from error
    what = f"compacted attempts {', '.join(map(str, done))}" if done else "nothing left to compact"
    typer.echo(f"run {folder.name}: {what}")


def _summary_row(summary: RunSummary, now: float) -> list[str]:
    total = f"/{summary.total_steps:,}" if summary.total_steps else ""
    losses = summary.loss, summary.validation_loss
    return [
        summary.name,
        summary.state,
        f"{summary.step:,}{total}",
        *("–" if loss is None else f"{loss:.4f}" for loss in losses),
        str(summary.segments),
        "–" if summary.goodput != summary.goodput else f"{summary.goodput:.0%}",
        "–" if summary.seen is None else since(summary.seen, now),
    ]


def _print_drift(folder: RunFolder, segments: Sequence[SegmentOpening]) -> None:
    from longhaul.logbook.run_spec import read_run_spec
    from longhaul.logbook.segments import drift_from_recipe, scheduled

    try:
        recipe = read_run_spec(folder).settings().model_dump(mode="json")
    except LonghaulError as error:
        typer.echo(f"recipe → now: the recipe cannot be compared: {error.message}")
        return
    ledger, damaged = load_ledger(folder)
    last = read_last(folder, 1, events=False)
    step = last[0].step if last else segments[-1].step
    drifts = drift_from_recipe(recipe, segments, ledger, step)
    same = "" if drifts else ": the same"
    typer.echo(f"recipe → now (segment {segments[-1].number}, step {step:,}){same}")
    for path, (wanted, now, why) in drifts.items():
        typer.echo(f"  {path}: {arrow(wanted, now)}")
        typer.echo(f"    {why}")
    for path, override in scheduled(ledger, step):
        typer.echo(f"  {path} → {short_value(override.value)} from step {override.from_step:,}")
        typer.echo(f"    set by {override.who} at step {override.step:,}: {override.reason}")
    if damaged:
        typer.echo(f"  {damaged} damaged journal lines may have held decisions that are lost")


def _print_live(folder: RunFolder) -> None:
    """What the optimizer itself held when it was last read back."""
    records = read_journal(folder, steps=False)
    events = [record for record in records if isinstance(record, Event) and "live" in record.data]
    if not events:
        return
    last = events[-1]
    of_role: dict[str, list[str]] = {}
    for name, value in last.data["live"].items():
        role, _, setting = name.rpartition(".")
        of_role.setdefault(role or "all", []).append(f"{setting} {short_value(value)}")
    typer.echo(f"live optimizer, read back at step {last.step:,} in attempt {last.attempt}")
    for role, settings in of_role.items():
        typer.echo(f"  {role}: {', '.join(settings)}")


@reads_a_run
def tree(run: RunName, runs_dir: RunsFolder = RUNS) -> None:
    """Show a run's segments: what each went on from, what changed, how it ended, what it cost."""
    from rich.tree import Tree

    from longhaul.logbook.lease import live_holder
    from longhaul.logbook.queries import connect
    from longhaul.logbook.summary import read_branches

    folder = open_run(run, runs_dir)
    events = list(read_journal(folder, steps=False))
    live = live_holder(folder, RealClock()) is not None
    with connect(folder) as connection:
        grown = read_branches(folder, connection, events, live=live)
    lost = sum(branch.steps_lost for branch in grown)
    total = count(len(grown), "segment") + (f", {lost:,} steps lost" if lost else "")
    root = Tree(f"run {folder.name}: {total}")
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
    """Write a report of a run: one page that opens anywhere, without a network."""
    from longhaul.board.report import write_report

    path = write_report(open_run(run, runs_dir), RealClock(), out)
    typer.echo(f"{path} ({short_bytes(path.stat().st_size)})")


def _label(branch: Branch) -> Text:
    from rich.text import Text

    opening, stretch = branch.opening, branch.stretch
    given = opening.weights.get("folder", "nothing")
    begin = f"after {opening.parent}" if opening.parent else f"from {given}"
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
    lines += [f"{path}: {arrow(*pair)}" for path, pair in opening.difference.items()]
    return Text.assemble((branch.number, "bold"), "\n  ".join(lines))


AtStep = Annotated[int | None, typer.Option("--step", help="a checkpoint; the newest when absent")]


@reads_a_run
def sample(
    run: RunName,
    prompt: Annotated[str | None, typer.Option(help="what the text goes on from")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="tokens to write")] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0)] = None,
    seed: Annotated[int, typer.Option(help="another seed writes another text")] = 0,
    step: AtStep = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Let a run's model write."""
    from longhaul.run.trained import open_trained

    model = open_trained(run, runs_dir, step)
    try:
        for piece in model.write(prompt, tokens, temperature, seed):
            sys.stdout.write(piece)
            sys.stdout.flush()
    finally:
        print(flush=True)
