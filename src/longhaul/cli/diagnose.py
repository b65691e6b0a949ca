"""`longhaul diagnose`: what made a step go wrong.

Enters: a run and a step. Leaves: the verdict in a sentence, and the figures of every rung.
Never knows: how it was found.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.options import RUNS, RunName, RunsFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from longhaul.diagnose.signs import Series
    from longhaul.run.diagnose.cause import Diagnosed
    from longhaul.run.diagnose.rerun import Elsewhere


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
    from longhaul.run.diagnose.cause import LEAD_STEPS, Means
    from longhaul.run.diagnose.cause import diagnose as find
    from longhaul.run.diagnose.rerun import under_python

    if save is not None:
        _make_empty(save)
    means = Means(
        witness=_witness(witness),
        previous=under_python(python) if python else None,
        lead_steps=LEAD_STEPS if lead is None else lead,
        save=save,
    )
    found = find(run, step, runs_dir, attempt=attempt, means=means, say=_say)
    for line in told(found):
        typer.echo(line)


def told(found: Diagnosed) -> Iterator[str]:
    """The verdict for a person: what was seen, what each rung gave, and the cause."""
    from longhaul.run.diagnose.search import symptom_in_words

    ladder, step = found.ladder, found.symptom.first_step
    yield symptom_in_words(found.symptom)
    if found.changed:
        yield f"since then: {'; '.join(found.changed[:4])}"
    yield ""
    yield f"{'step ' + str(step):36} {'loss':>12} {'gradient norm':>14}"
    yield _row("recorded", ladder.recorded, step)
    for number, series in enumerate(ladder.replays, start=1):
        yield _row(f"replay {number}", series, step)
    rungs = {"another device": ladder.witness, "eager float32": ladder.plain,
             "software before": ladder.previous}  # fmt: skip
    for name, frames in rungs.items():
        for series in frames or ():
            if series and series[0].step == step:
                yield _row(name, series, step)
    for number, series in enumerate(ladder.other_data, start=1):
        yield _row(f"other batches {number}", series, step)
    for factor, series in ladder.lower_rates:
        yield _row(f"{factor:g} of the learning rate", series, step)
    for rung, why in ladder.skipped.items():
        yield f"not climbed: {rung}: {why}"
    yield ""
    yield f"cause: {found.verdict.cause}"
    yield f"  {found.verdict.sentence}"


def _row(name: str, series: Series, step: int) -> str:
    for figures in series:
        if figures.step == step:
            masked = "  masked" if figures.masked else ""
            return f"{name:36} {figures.loss:12.6f} {figures.gradient_norm:14.5g}{masked}"
    return f"{name:36} {'not made':>12}"


def _witness(named: str | None) -> Elsewhere | str | None:
    from longhaul.run.diagnose.rerun import device_named, from_file

    if named is None:
        return None
    return from_file(Path(named)) if Path(named).is_file() else device_named(named)


def _make_empty(folder: Path) -> None:
    """Where captured states go: seen to be possible before anything is computed."""
    from longhaul.core.errors import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        why = f"no folder can be made there ({error.strerror})"
        raise UsageError(f"--save {folder}: {why}", "name a new folder") from error
    if taken:
        raise UsageError(f"--save {folder}: is not empty", "name a new folder")


def _say(line: str) -> None:
    typer.echo(f"… {line}", err=True)
