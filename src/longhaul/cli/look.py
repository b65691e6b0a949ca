"""Commands that look at runs: `runs`, `log`, `diff`, `compact`.

Enters: a run's name or path. Leaves: text that reads well in 80 columns and through a pipe.
Never knows: tensors; it reads the logbook only, of live, dead and finished runs alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from longhaul.cli.options import RUNS, RunName, RunsFolder
from longhaul.cli.reading import reads_a_run
from longhaul.cli.shown import console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from longhaul.logbook.folder import RunFolder
    from longhaul.logbook.segments import SegmentOpening
    from longhaul.logbook.summary import RunSummary

_DATED_AFTER_S = 48 * 3600
_MOST_SHOWN = 44
"""Characters of a value in a difference; the files have the whole of it."""


@reads_a_run
def runs(runs_dir: RunsFolder = RUNS) -> None:
    """List the runs: state, progress, losses, goodput."""
    from rich.table import Table

    from longhaul.core.clocks import RealClock
    from longhaul.logbook.folder import list_runs
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
            table.add_row(*_summary_row(summarize(folder, clock), clock.wall()))
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
    from longhaul.cli.lines import readable_line
    from longhaul.logbook.folder import open_run
    from longhaul.logbook.reading import read_last

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
    from longhaul.core.errors import UsageError
    from longhaul.logbook.folder import open_run
    from longhaul.logbook.segments import (
        by_opening,
        find_segment,
        read_segments,
        segment_differences,
    )

    folder = open_run(run, runs_dir)
    segments = by_opening(read_segments(folder))
    if not segments:
        raise UsageError(
            f"run {folder.name}: has no segments yet", "it has one once training begins"
        )
    b = find_segment(folder, new) if new else segments[-1]
    a = find_segment(folder, old) if old else segments[-2] if len(segments) > 1 else None
    if a is None:
        typer.echo(f"run {folder.name} has one segment, {b.number}: none to compare it with")
    else:
        typer.echo(f"segment {a.number} → {b.number}   ({b.reason})")
        for section, found in segment_differences(a, b).items():
            _print_differences(section, found)
    typer.echo("")
    _print_drift(folder, segments)
    _print_live(folder)


@reads_a_run
def compact(run: RunName, runs_dir: RunsFolder = RUNS) -> None:
    """Copy closed journal files to Parquet, for fast questions; the JSON lines stay."""
    from longhaul.core.clocks import RealClock
    from longhaul.core.errors import LonghaulError
    from longhaul.logbook import queries
    from longhaul.logbook.folder import open_run

    folder = open_run(run, runs_dir)
    try:
        done = queries.compact(folder, RealClock())
    except OSError as error:
        raise LonghaulError(f"{folder.compacted}: cannot be written: {error}") from error
    what = f"compacted attempts {', '.join(map(str, done))}" if done else "nothing left to compact"
    typer.echo(f"run {folder.name}: {what}")


def _summary_row(summary: RunSummary, now: float) -> list[str]:
    total = f"/{summary.total_steps:,}" if summary.total_steps else ""
    return [
        summary.name,
        summary.state,
        f"{summary.step:,}{total}",
        _loss(summary.loss),
        _loss(summary.validation_loss),
        str(summary.segments),
        "–" if summary.goodput != summary.goodput else f"{summary.goodput:.0%}",
        "–" if summary.seen is None else since(summary.seen, now),
    ]


def since(then: float, now: float) -> str:
    """How long ago; what is older than two days gets its date."""
    import time

    from longhaul.core.units import short_seconds

    if now - then > _DATED_AFTER_S:
        return time.strftime("%Y-%m-%d", time.localtime(then))
    return f"{short_seconds(max(now - then, 0.0))} ago"


def _print_differences(section: str, found: Mapping[str, tuple[Any, Any]]) -> None:
    typer.echo(f"{section}: {'' if found else 'the same'}".rstrip())
    for path, pair in found.items():
        typer.echo(f"  {change_line(path, *pair)}")


def _print_drift(folder: RunFolder, segments: Sequence[SegmentOpening]) -> None:
    from longhaul.core.errors import LonghaulError
    from longhaul.logbook.ledger import load_ledger
    from longhaul.logbook.reading import read_last
    from longhaul.logbook.run_spec import read_asked
    from longhaul.logbook.segments import drift_from_recipe, scheduled

    try:
        recipe = read_asked(folder).settings().model_dump(mode="json")
    except LonghaulError as error:
        typer.echo(f"recipe → now: the recipe cannot be compared: {error.message}")
        return
    ledger, damaged = load_ledger(folder)
    last = read_last(folder, 1, events=False)
    step = last[0].step if last else segments[-1].step
    drifts = drift_from_recipe(recipe, segments, ledger, step)
    same = "" if drifts else ": the same"
    typer.echo(f"recipe → now (segment {segments[-1].number}, step {step:,}){same}")
    for drift in drifts:
        typer.echo(f"  {change_line(drift.path, drift.recipe, drift.now)}")
        typer.echo(f"    {drift.why}")
    for path, override in scheduled(ledger, step):
        typer.echo(f"  {path} → {_shown(override.value)} from step {override.from_step:,}")
        typer.echo(f"    set by {override.who} at step {override.step:,}: {override.reason}")
    if damaged:
        typer.echo(f"  {damaged} damaged journal lines may have held decisions that are lost")


def _print_live(folder: RunFolder) -> None:
    """What the optimizer itself held when it was last read back."""
    from longhaul.core.records import Event
    from longhaul.logbook.reading import read_journal

    records = read_journal(folder, steps=False)
    events = [record for record in records if isinstance(record, Event) and "live" in record.data]
    if not events:
        return
    last = events[-1]
    of_role: dict[str, list[str]] = {}
    for name, value in last.data["live"].items():
        role, _, setting = name.rpartition(".")
        shown = f"{value:g}" if isinstance(value, int | float) else _shown(value)
        of_role.setdefault(role or "all", []).append(f"{setting} {shown}")
    typer.echo(f"live optimizer, read back at step {last.step:,} in attempt {last.attempt}")
    for role, settings in of_role.items():
        typer.echo(f"  {role}: {', '.join(settings)}")


def change_line(path: str, old: Any, new: Any) -> str:
    """A setting before and after, shortened to fit a line."""
    return f"{path}: {_shown(old)} → {_shown(new)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) and value else repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
