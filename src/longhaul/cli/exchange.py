"""Models to and from other programs: `longhaul export` and `longhaul import`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from longhaul.cli.common import (
    PREPARED,
    RUNS,
    DataPath,
    Device,
    Overrides,
    PreparedFolder,
    RunName,
    RunsFolder,
    reads_a_run,
)
from longhaul.cli.runs import AtStep


class Form(StrEnum):
    """What can be exported to."""

    hf = "hf"


class Weights(StrEnum):
    """Formats of exported weights."""

    float32 = "float32"
    bf16 = "bf16"
    fp16 = "fp16"


@reads_a_run
def export(
    run: RunName,
    to: Annotated[
        Form, typer.Option("--to", help="hf: a folder that transformers loads")
    ] = Form.hf,
    step: AtStep = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="a new folder", show_default="exports/RUN-step-N"),
    ] = None,
    dtype: Annotated[
        Weights | None, typer.Option(help="format of the weights", show_default="as trained")
    ] = None,
    runs_dir: RunsFolder = RUNS,
) -> None:
    """Write a run's model as a folder that AutoModelForCausalLM and AutoTokenizer load.

    It is kept only if transformers computes from it the logits that the model has here, on the
    run's held-out text. Where no class of transformers has the model's switches, the folder brings
    code of its own, and whoever loads it needs longhaul too. Needs the extra longhaul[hf].
    """
    from longhaul.interop.hf.agreement import refuse_without_transformers

    refuse_without_transformers()  # before torch is imported
    from longhaul.run.export import export as write
    from longhaul.run.export import size_in_words

    folder = write(run, runs_dir, step, out, dtype.value if dtype else None, typer.echo)
    typer.echo(f"{folder} ({size_in_words(folder)})")


def import_weights(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="a folder with config.json, safetensors, tokenizer"),
    ],
    data: DataPath = None,
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option(help="of the recipe and the run", show_default="the folder's")
    ] = None,
    device: Device = None,
    runs_dir: RunsFolder = RUNS,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Begin a run with published weights (GPT-2, OPT, Llama, Mistral, Qwen, Gemma 2, longhaul's).

    Writes a recipe, NAME.toml, and with --data trains it. Nothing in the folder is run: pickled
    weights are refused.
    """
    from longhaul.core.errors import UsageError
    from longhaul.core.files import create_exclusively
    from longhaul.interop.hf.recipe import recipe_for

    name, text = recipe_for(folder, name)
    path = Path(f"{name}.toml")
    if not create_exclusively(path, text.encode()) and path.read_text() != text:
        raise UsageError(
            f"{path}: is there already, and says something else",
            f"train it as it is (`longhaul train {path}`), or give another --name",
        )
    typer.echo(f"recipe: {path}")
    if data is None:
        typer.echo(f"  → longhaul train {path} --data YOUR-TEXT")
        return
    from longhaul.cli.train import train

    train(
        str(path), data, overrides, device, nproc=None, max_hours=None, runs_dir=runs_dir,
        prepared_dir=prepared_dir,
    )  # fmt: skip
