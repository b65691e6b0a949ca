"""`longhaul sample` and `longhaul eval`: what a trained model writes, and how good it is."""

import sys
from typing import Annotated

import typer

from longhaul.cli.options import RUNS, RunName, RunsFolder
from longhaul.cli.reading import reads_a_run

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
    from longhaul.run.commands.trained import Wanted, open_trained

    model = open_trained(run, runs_dir, step)
    for piece in model.write(Wanted(prompt, tokens, temperature, seed)):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print()


@reads_a_run
def evaluate(run: RunName, step: AtStep = None, runs_dir: RunsFolder = RUNS) -> None:
    """Measure a run's model on its whole validation split."""
    from longhaul.run.commands.trained import open_trained

    print(open_trained(run, runs_dir, step).evaluated())
