"""`longhaul.train`: the command `longhaul train` in a process of its own, seen from Python.

A notebook's process has threads, its own handlers of signals and perhaps a device; so nothing is
forked from it, and no handler is set in it. What the run says is passed on line by line.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from longhaul.config.load import as_toml
from longhaul.core.errors import DataError, ExitCode, LonghaulError, NeedsPerson, RecipeError
from longhaul.logbook.folder import RunFolder
from longhaul.run.opened import Run

_MOST_LINES = 200
"""Of the end of the output, in which the message of an error is looked for."""
_MESSAGE = re.compile(r"^(?:longhaul|SilentCorruption): ")
_FOLDER = "run: "
_WAY_OUT = "  → "
_INTERRUPTED = "train it again with the same arguments, which goes on from there"


class RunStopped(LonghaulError):
    """The run ended without being finished: interrupted (exit code 130), told to stop and to be
    started again (16), or failed (1). What it has saved is there to go on from.
    """

    def __init__(self, message: str, remedy: str, exit_code: int) -> None:
        super().__init__(message, remedy)
        known = {int(code): code for code in ExitCode}
        self.exit_code = known.get(exit_code, ExitCode.FAILED)


def train(
    recipe: str | Path,
    *,
    data: str | Path | Mapping[str, Any] | None = None,
    device: str | None = None,
    nproc: int | None = None,
    max_hours: float | None = None,
    new: bool = False,
    small: bool = False,
    trust: bool = False,
    runs_dir: str | Path = "runs",
    prepared_dir: str | Path = "prepared",
    say: Callable[[str], None] = print,
    **overrides: Any,
) -> Run:
    """Train a recipe as `longhaul train` does, and wait for its end; the finished run.

    `longhaul.train("quickstart", train={"steps": 200}, optim={"lr": 1e-3})` and
    `longhaul.train("quickstart", **{"train.steps": 200, "optim.lr": 1e-3})` are the same.
    An interrupt (the notebook's stop button, Ctrl-C) finishes the step, saves and raises; a second
    one leaves at once. Trained again with the same arguments, the run goes on. The run is a process
    of its own: it goes on if this one dies.

    Args:
        recipe: a shipped recipe's name, a `.toml` file, or the name of a run to go on with.
        data: a file, folder or address to train on; or settings below `data`, as in `overrides`.
        device: `auto`, `cuda`, `mps` or `cpu`.
        nproc: worker processes, as a rule one for each GPU.
        max_hours: end the run after so many hours in all.
        new: start another run beside the one of that name.
        small: train the recipe's small twin.
        trust: run the commands that the recipe, or the run's folder, names.
        runs_dir: folder that holds the runs.
        prepared_dir: folder that holds prepared text.
        say: told each line that the run says, without its end.
        overrides: settings as nested tables, or by dotted path.

    Raises:
        RecipeError: the recipe or the arguments are wrong.
        DataError: the text is wrong beyond what the recipe tolerates.
        NeedsPerson: going on would do harm.
        RunStopped: interrupted (exit code 130), or stopped to be started again (16).
    """
    if isinstance(data, Mapping):
        overrides, data = {"data": data, **overrides}, None
    words = [str(recipe), "--runs-dir", str(runs_dir), "--prepared-dir", str(prepared_dir)]
    given = {"--data": data, "--device": device, "--nproc": nproc, "--max-hours": max_hours}
    for option, value in given.items():
        words += [] if value is None else [option, str(value)]
    for option, wanted in {"--new": new, "--small": small, "--trust": trust}.items():
        words += [option] if wanted else []
    for option in options_from(overrides):
        words += ["--set", option]
    code, lines = _follow(words, say)
    folder = next((line for line in reversed(lines) if line.startswith(_FOLDER)), None)
    if code != ExitCode.FINISHED:
        raise _error(code, lines)
    if folder is None:
        raise NeedsPerson(f"`longhaul train {recipe}` did not say which run it trained")
    return Run(RunFolder(Path(folder.removeprefix(_FOLDER))))


def options_from(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """`path=value` for each setting in nested tables with plain or dotted names; RecipeError for
    None, which no setting is given as.
    """
    for name, value in overrides.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from options_from(value, f"{path}.")
        elif value is None:
            raise RecipeError(f"{path}: None is no value", "leave the setting out")
        else:
            yield f"{path}={as_toml(_without_paths(value))}"


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_paths(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _follow(words: list[str], say: Callable[[str], None]) -> tuple[int, list[str]]:
    """Run the command to its end; its exit code, and the last lines it said."""
    reading_end, writing_end = os.pipe()
    lines: list[str] = []
    with os.fdopen(reading_end, encoding="utf-8", errors="replace") as output:
        with os.fdopen(writing_end, "wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "longhaul", "train", *words],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                start_new_session=True, env=dict(os.environ),
            )  # fmt: skip
        try:
            while True:
                # Each interrupt of ours is one of the run's, whatever we were doing meanwhile.
                try:
                    for line in output:
                        lines = [*lines[1 - _MOST_LINES :], line.rstrip("\n")]
                        say(lines[-1])
                    return process.wait(), lines
                except KeyboardInterrupt:
                    process.send_signal(signal.SIGINT)
        except BaseException:
            with suppress(ProcessLookupError):
                process.terminate()  # it saves, and can be gone on with
            raise


def _error(code: int, lines: list[str]) -> LonghaulError:
    begins = [number for number, line in enumerate(lines) if _MESSAGE.match(line)]
    said = "\n".join(lines[begins[-1] if begins else max(0, len(lines) - 1) :])
    message, _, remedy = _MESSAGE.sub("", said).partition(f"\n{_WAY_OUT}")
    for kind in (RecipeError, DataError, NeedsPerson):
        if code == kind.exit_code:
            return kind(message, remedy)
    return RunStopped(message or f"it ended with exit code {code}", remedy or _INTERRUPTED, code)
