"""`longhaul diagnose`: what made a step go wrong; `replay`: what other limits would have done."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longhaul.cli.common import RUNS, RunName, RunsFolder, console, reads_a_run
from longhaul.core.errors import UsageError
from longhaul.logbook.description import readable_line
from longhaul.logbook.folder import open_run
from longhaul.logbook.reading import read_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.table import Table

    from longhaul.config.recipe import Recipe
    from longhaul.core.records import Finding
    from longhaul.diagnose.signs import Series
    from longhaul.logbook.folder import RunFolder
    from longhaul.recover.backtest import Backtest, Turn
    from longhaul.run.diagnose.cause import Diagnosed

Limits = tuple["Mapping[str, Any]", "Mapping[str, str]"]
"""Of a file with other limits: dotted path → value, and → `file:line`."""


def diagnose(
    run: RunName,
    step: Annotated[int, typer.Option("--step", help="updates made once the step was done")],
    attempt: Annotated[
        int | None, typer.Option(help="of a step made more than once; the last when absent")
    ] = None,
    witness: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE|FILE",
            help="another device (cuda:1, cpu), or figures that another machine computed",
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="of the environment with the software before")
    ] = None,
    lead: Annotated[
        int | None, typer.Option(min=0, help="steps before the first sign to set out from")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="keep what was captured: `python -m longhaul.run.diagnose.rerun FOLDER/* > FILE` "
            "on another machine makes the file for --witness",
        ),
    ] = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Find what made a step go wrong: replay it with one thing changed at a time."""
    from longhaul.run.diagnose.cause import LEAD_STEPS, RemedyOptions
    from longhaul.run.diagnose.cause import diagnose as find
    from longhaul.run.diagnose.rerun import under_python, witness_named

    if save is not None:
        _make_empty(save)
    options = RemedyOptions(
        witness=None if witness is None else witness_named(witness),
        previous=under_python(python) if python else None,
        lead_steps=LEAD_STEPS if lead is None else lead,
        save=save,
    )

    def report(line: str) -> None:
        typer.echo(f"… {line}", err=True)

    found = find(run, step, runs_dir, attempt=attempt, options=options, report=report)
    for line in verdict_lines(found):
        typer.echo(line)


def verdict_lines(found: Diagnosed) -> Iterator[str]:
    """The verdict for a person: what was seen, what each experiment gave, and the cause."""
    ladder, step = found.ladder, found.symptom.first_step
    yield str(found.symptom)
    if found.changed:
        yield f"since then: {'; '.join(found.changed[:4])}"
    yield ""
    yield f"{'step ' + str(step):36} {'loss':>12} {'gradient norm':>14}"
    yield _row("recorded", ladder.recorded, step)
    for number, series in enumerate(ladder.replays, start=1):
        yield _row(f"replay {number}", series, step)
    framed = {"another device": ladder.witness, "eager float32": ladder.plain,
              "software before": ladder.previous}  # fmt: skip
    for name, frames in framed.items():
        for series in frames or ():
            if series and series[0].step == step:
                yield _row(name, series, step)
    for number, series in enumerate(ladder.other_data, start=1):
        yield _row(f"other batches {number}", series, step)
    for factor, series in ladder.lower_rates:
        yield _row(f"{factor:g} of the learning rate", series, step)
    for experiment, why in ladder.skipped.items():
        yield f"not tried: {experiment}: {why}"
    yield ""
    yield f"cause: {found.verdict.cause}"
    yield f"  {found.verdict.sentence}"


def _row(name: str, series: Series, step: int) -> str:
    for figures in series:
        if figures.step == step:
            masked = "  masked" if figures.masked else ""
            return f"{name:36} {figures.loss:12.6f} {figures.gradient_norm:14.5g}{masked}"
    return f"{name:36} {'not made':>12}"


def _make_empty(folder: Path) -> None:
    """Where captured states go: seen to be possible before anything is computed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        why = f"no folder can be made there ({error.strerror})"
        raise UsageError(f"--save {folder}: {why}", "name a new folder") from error
    if taken:
        raise UsageError(f"--save {folder}: is not empty", "name a new folder")


@reads_a_run
def replay(
    run: RunName,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML with [recover] and [[fallback]] as in a recipe"),
    ] = None,
    detectors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML with [diagnose] as in a recipe")
    ] = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Judge a run's journal again, by other limits if given: what would be found and done."""
    folder = open_run(run, runs_dir)
    limits = [_read_limits(policy, ("recover", "fallback"))] if policy else []
    limits += [_read_limits(detectors, ("diagnose",))] if detectors else []
    done, damaged = judged_again(folder, limits)
    for line in replay_lines(folder.name, done):
        typer.echo(line)
    if done.turns:
        console().print(_table(done.turns))
    typer.echo(balance(done))
    if done.turns and not done.has_states:
        typer.echo("an older longhaul wrote this: what could be gone back to is not known")
    if damaged:
        typer.echo(f"{damaged} damaged journal lines were passed over")


def judged_again(folder: RunFolder, limits: Sequence[Limits] = ()) -> tuple[Backtest, int]:
    """A journal judged by the limits then in force but those given, and its damaged lines."""
    from longhaul.config.load import recipe_from_values, with_overrides
    from longhaul.logbook.run_spec import read_run_spec
    from longhaul.logbook.segments import read_segments
    from longhaul.recover.backtest import replay as judge_again

    def judged_by(settings: Recipe) -> Recipe:
        for values, origins in limits:
            settings = with_overrides(settings, values, origins)
        return settings

    recipe = judged_by(read_run_spec(folder).settings())
    segments = {
        str(opening.number): judged_by(recipe_from_values(opening.settings, opening.file))
        for opening in read_segments(folder)
    }
    records = read_journal(folder)
    done = judge_again(records, recipe, segments)
    return done, records.damaged


def replay_lines(name: str, done: Backtest) -> Iterator[str]:
    """Findings that differ, in words."""
    yield f"run {name}: {done.steps:,} steps judged again"
    live, would = done.live_findings, done.findings
    yield f"findings: {len(live)} live, {len(would)} by these limits"
    for title, these, others in (
        ("only live", live, would), ("only by these limits", would, live),
    ):  # fmt: skip
        known = set(map(_key, others))
        for finding in these:
            if _key(finding) not in known:
                yield f"  {title}: {readable_line(finding)}"


def balance(done: Backtest) -> str:
    """Steps lost or saved, in a sentence."""
    if not done.turns:
        return "decisions: none live, none by this policy"
    live = sum(turn.live is not None for turn in done.turns)
    would = sum(turn.would is not None for turn in done.turns)
    lost, saved = sum(turn.steps_lost_live for turn in done.turns), done.steps_saved
    over = f"{abs(saved):,} {'more' if saved < 0 else 'fewer'}" if saved else "as many"
    live_words = f"decisions: {live} live, which went back over {lost:,} steps"
    return f"{live_words}; {would} by this policy, over {over}"


def _key(finding: Finding) -> tuple[Any, ...]:
    at = finding.attempt, finding.segment, finding.step
    return *at, finding.kind, finding.subject, finding.severity


def _table(turns: Sequence[Turn]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("step", justify="right")
    for title in ("segment", "cause", "the run did", "would have done"):
        table.add_column(title, overflow="fold")
    for turn in turns:
        data = turn.live.data if turn.live else {}
        cause = turn.would.cause if turn.would else str(data.get("cause", "?"))
        did = _done(data.get("actions", ()), turn.steps_lost_live, data.get("rollback"))
        actions, to = (turn.would.actions, turn.would.rollback) if turn.would else ((), None)
        would = _done(actions, turn.steps_lost, to and {"to": to.step})
        table.add_row(f"{turn.step:,}", turn.segment, cause, did, would)
    return table


def _done(actions: Sequence[str], lost: int, rollback: Any) -> str:
    if not actions:
        return "–"
    back = f" to {rollback['to']:,} (−{lost:,})" if rollback else ""
    return ", ".join(f"rollback{back}" if a == "rollback" else a for a in actions)


def _read_limits(path: Path, tables: tuple[str, ...]) -> Limits:
    from longhaul.config.load import leaves
    from longhaul.config.problems import lines_of_settings
    from longhaul.config.recipe import Recipe
    from longhaul.core.strict import DamagedFile, read_toml

    named = " or ".join(f"[{name}]" for name in tables)
    remedy = f"name a TOML file with {named}, as they stand in a recipe"
    try:
        text, values = read_toml(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})", remedy) from error
    except DamagedFile as error:
        raise UsageError(error.message, remedy) from error
    if unknown := [name for name in values if name not in Recipe.model_fields]:
        raise UsageError(f"{path}: {unknown[0]} is no table of a recipe", remedy)
    given = {name: values[name] for name in tables if name in values}
    if not given:
        what = f"has no table {named}" if values else "is empty"
        raise UsageError(f"{path}: {what}", remedy)
    lines = {at: f"{path.name}:{line}" for at, line in lines_of_settings(text).items()}
    entries = {"fallback": given.pop("fallback")} if "fallback" in given else {}
    if scalar := [name for name, value in given.items() if not isinstance(value, dict)]:
        raise UsageError(f"{path}: {scalar[0]} is no table", remedy)
    return dict(leaves(given)) | entries, lines
