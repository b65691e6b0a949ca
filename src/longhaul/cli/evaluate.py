"""`longhaul eval`: how good a run's model is, on held-out text, on any text, on tasks."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longhaul.cli.common import (
    PREPARED,
    RUNS,
    Device,
    PreparedFolder,
    RunName,
    RunsFolder,
    reads_a_run,
)
from longhaul.cli.runs import AtStep
from longhaul.core.errors import UsageError
from longhaul.core.output import print_out

if TYPE_CHECKING:
    from longhaul.run.evaluate.watch import Asked


_ByLayer = Annotated[
    bool | None,
    typer.Option(
        "--by-layer/--whole",
        help="read each layer's weights when it computes, or load all",
        show_default="by layer where the model does not fit the device",
    ),
]


@reads_a_run
def evaluate(
    run: RunName,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            metavar="PATH",
            help="perplexity and bits per byte of this file, folder or address; may be repeated",
        ),
    ] = None,
    text_field: Annotated[
        str, typer.Option(help="field that holds the text in JSON lines and Parquet")
    ] = "text",
    tasks: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="tasks of lm-evaluation-harness (extra longhaul[eval])"),
    ] = None,
    tasks_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="task files of your own")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="documents of each task; all when absent")
    ] = None,
    shots: Annotated[
        int | None, typer.Option(min=0, help="examples before each question of a task")
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="judge each checkpoint once, as it appears, until the run is finished; RUN may be "
            "the address of a run in a store",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="how often --watch looks")
    ] = 30.0,
    device: Device = None,
    by_layer: _ByLayer = None,
    step: AtStep = None,
    runs_dir: RunsFolder = RUNS,
    prepared_dir: PreparedFolder = PREPARED,
) -> None:
    """Measure a run's model: on its whole validation split, or on the texts and tasks named."""
    names = [name for name in (tasks or "").split(",") if name]
    if tasks is not None:
        _check_harness(names)
    if watch:
        from longhaul.run.evaluate.watch import Asked, texts_as_given

        if step is not None:
            raise UsageError("--watch and --step: one asks for all checkpoints", "give one of them")
        texts = texts_as_given(text or [])
        _watch(run, runs_dir, every, Asked(
            texts, text_field, tuple(names), tasks_dir, limit, shots, prepared_dir, device,
            by_layer,
        ))  # fmt: skip
        return
    from longhaul.run.trained import open_trained

    trained = open_trained(run, runs_dir, step, device, by_layer)
    if not text and tasks is None:
        print(trained.evaluated())
        return
    print(f"step {trained.step}")
    if text:
        from longhaul.run.evaluate.text import text_losses

        downloads = prepared_dir / "downloads"
        for loss in text_losses(trained, text, downloads, _say, text_field):
            print(f"  {loss}", flush=True)
    if names:
        from longhaul.run.evaluate.harness import task_scores

        for score in task_scores(trained, names, tasks_dir, limit, shots):
            print(f"  {score}")


def _watch(run: str, runs_dir: Path, every_s: float, asked: Asked) -> None:
    from time import sleep

    from longhaul.core.clocks import RealClock
    from longhaul.logbook.folder import open_run
    from longhaul.run.evaluate.watch import Watch
    from longhaul.store.remote_run import is_remote, look_at

    remote = look_at(run, runs_dir, _say) if is_remote(run) else None
    folder = open_run(run, runs_dir) if remote is None else remote.folder
    Watch(folder, asked, RealClock(), print_out, remote).run(lambda: sleep(every_s))


def _check_harness(names: list[str]) -> None:
    if not names:
        raise UsageError("--tasks names no task", "give some, such as --tasks hellaswag,arc_easy")
    if find_spec("lm_eval") is None:
        raise UsageError(
            "--tasks needs lm-evaluation-harness, which is not installed",
            "pip install 'longhaul[eval]'",
        )
    if not sys.stderr.isatty():  # tqdm reads it as it is imported
        os.environ.setdefault("TQDM_DISABLE", "1")


def _say(text: str) -> None:
    print(text, file=sys.stderr)
