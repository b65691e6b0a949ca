"""Saved bundles computed again elsewhere: `python -m longhaul.run.diagnose.rerun FOLDER... > FILE`.

Another node, device or version of the software needs nothing of the run but the bundles. It writes
the figures of each as JSON, twice over: the file that `longhaul diagnose --witness FILE` takes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from longhaul.core.errors import UsageError
from longhaul.core.records import finite_or_word
from longhaul.diagnose.signs import Series
from longhaul.run.diagnose.bundle import Bundle, load_bundle, save_bundle

Twice = tuple[tuple[Series, ...], tuple[Series, ...]]
"""Of each bundle the figures, and once more."""
Elsewhere = Callable[[tuple[Bundle, ...]], Twice]
"""Somewhere that computes bundles."""

_LONGEST_S = 3600.0
_TWICE: TypeAdapter[Twice] = TypeAdapter(Twice)


def witness_named(name: str) -> Elsewhere | str:
    """A file of figures, or the name of a device that answers on this machine; else UsageError."""
    import torch

    if Path(name).is_file():
        return from_file(Path(name))
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(
            f"--witness {name}: neither a file nor a device that answers on this machine",
            "name one such as cuda:1, or a file of figures that another machine computed",
        ) from error
    return name


def on_device(name: str) -> Elsewhere:
    """Another device of this process, such as `cuda:1`."""
    import torch

    from longhaul.model.device import on
    from longhaul.run.diagnose.replays import replay_each

    def compute(bundles: tuple[Bundle, ...]) -> Twice:
        device = torch.device(name)
        # This process trains or replays on another one, which it means wherever none is named.
        with on(device):
            return replay_each(bundles, device), replay_each(bundles, device)

    return compute


def under_python(python: str, device: str = "auto") -> Elsewhere:
    """A process of another Python environment on this machine, which has its own longhaul."""

    def compute(bundles: tuple[Bundle, ...]) -> Twice:
        with tempfile.TemporaryDirectory(prefix="longhaul-bundles-") as temporary:
            folders = [Path(temporary) / f"step-{bundle.step}" for bundle in bundles]
            for folder, bundle in zip(folders, bundles, strict=True):
                save_bundle(folder, bundle)
            command = [python, "-m", "longhaul.run.diagnose.rerun", "--device", device,
                       *map(str, folders)]  # fmt: skip
            try:
                ended = subprocess.run(
                    command, capture_output=True, text=True, check=False, timeout=_LONGEST_S,
                )  # fmt: skip
            except OSError as error:
                raise UsageError(f"{python}: cannot be run ({error.strerror})") from error
        if ended.returncode != 0:
            last = (ended.stderr.strip().splitlines() or ["without any output"])[-1]
            raise UsageError(f"{python} cannot replay the step: {last}")
        return read_figures(ended.stdout, python)

    return compute


def from_file(path: Path) -> Elsewhere:
    """Figures that another machine computed from the saved bundles."""

    def compute(bundles: tuple[Bundle, ...]) -> Twice:
        try:
            first, again = read_figures(path.read_text(encoding="utf-8"), str(path))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
        wanted = [bundle.step for bundle in bundles]
        if [series[0].step for series in first if series] != wanted:
            raise UsageError(
                f"{path}: these are not the figures of steps {wanted}",
                "save the bundles with the same --step and --lead, and replay all of them",
            )
        return first, again

    return compute


def figures_text(twice: Twice) -> str:
    """Figures as one line of JSON."""
    runs = [[[asdict(figures) for figures in series] for series in run] for run in twice]
    return json.dumps({"figures": finite_or_word(runs)})


def read_figures(text: str, where: str) -> Twice:
    """What `figures_text` wrote; UsageError if it is none of it."""
    try:
        return _TWICE.validate_python(json.loads(text)["figures"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{where}: no figures of replays ({error})") from error


def main() -> None:
    """Replay the bundles named on the command line."""
    parser = argparse.ArgumentParser(description="compute saved bundles again")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    bundles = tuple(load_bundle(folder) for folder in given.folders)
    import torch

    from longhaul.model.device import claim
    from longhaul.parallel.device import own_device
    from longhaul.run.diagnose.replays import replay_each, settled

    kind, _, number = given.device.partition(":")
    device = claim(torch.device(kind, int(number))) if number else own_device(kind)
    with settled(bundles[0].inputs[0].settings, None, device):
        first, again = replay_each(bundles, device), replay_each(bundles, device)
    sys.stdout.write(figures_text((first, again)) + "\n")


if __name__ == "__main__":
    main()
