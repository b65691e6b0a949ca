"""What a part works with: its recipes, whole or as small twins, its text, its peers, its folders.

The text is the code of installed packages, cut by a byte-level BPE of GPT-2's size that is trained
on it: nothing comes from the network, and the head is as wide as the recipe's own.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from benchmarks.common import ROOT, Bar
from benchmarks.step import sets

if TYPE_CHECKING:
    import torch

    from longhaul.config.recipe import Recipe
    from longhaul.data.dataset import Dataset
    from longhaul.logbook.folder import RunFolder

LIMIT_S = 480.0
"""A part has so long."""
_TEXT = ('tokenizer={kind="bpe", vocab_size=50257, training_mb=32.0}',)
_TINY_TEXT = ('data.sources=[{name="made-up", path="synthetic"}]',)
QUIET = ("evaluation.interval_steps=0", "checkpoint.interval_steps=0", "sample.tokens=0")
"""Nothing between steps and little at the end."""


class NotMeasured(Exception):
    """Why a part has no figures."""


@dataclass
class Outcome:
    """What a part found."""

    bars: list[Bar]
    facts: dict[str, Any] = field(default_factory=dict)
    """For parts after it; JSON values."""


def code_cache(folder: Path) -> dict[str, str]:
    """Environment for compiled code in a folder, instead of the run's own; the driver's own cache
    is of no use to freshly made code.
    """
    from longhaul.model.code_cache import VARIABLES

    return {name: str(folder / part) for name, part in VARIABLES.items()}


@dataclass(frozen=True)
class Setting:
    """Of one part."""

    tiny: bool
    room: Path
    """Empty at the start, removed at the end."""
    prepared: Path
    """Prepared text, shared by all parts."""
    peer: Path | None = None
    """A nanoGPT checkout."""
    modded: Path | None = None
    """A modded-nanogpt checkout."""
    earlier: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Facts of other parts, by name."""
    began: float = field(default_factory=time.monotonic)
    limit_s: float = LIMIT_S

    @cached_property
    def device(self) -> "torch.device":
        import torch

        return torch.device("cpu" if self.tiny else "cuda")

    @cached_property
    def peak(self) -> float | None:
        """The device's dense bf16 peak in FLOP/s, if it is known."""
        from benchmarks.step import known_peak

        return known_peak(self.device, "bf16")

    @property
    def left_s(self) -> float:
        """Seconds until the part's limit."""
        return self.limit_s - (time.monotonic() - self.began)

    def pick(self, whole: Any, tiny: Any) -> Any:
        """One value for a GPU, another for a twin."""
        return tiny if self.tiny else whole

    def options(
        self, recipe: str, *more: str, text: bool = True, shape: tuple[str, ...] = ()
    ) -> list[str]:
        """Overrides of a recipe: another `shape`, its twin's if tiny, the text, `more` on top."""
        from longhaul.config.load import load_recipe
        from longhaul.config.size import shrunken

        twin = shrunken(load_recipe(recipe, shape).recipe, own_data=True) if self.tiny else ()
        here = [*shape, *twin, f"machine.device={self.device.type}"]
        if text:
            source = f'data.sources=[{{name="packages", path="{packages()}"}}]'
            here += _TINY_TEXT if self.tiny else (source, *_TEXT)
        return [*here, *more]

    def recipe(self, name: str, *more: str) -> "Recipe":
        """The recipe under `options`."""
        from longhaul.config.load import load_recipe

        return load_recipe(name, self.options(name, *more)).recipe

    def dataset(self, recipe: "Recipe") -> "Dataset":
        """The prepared text of a recipe, prepared if it is not there."""
        from longhaul.data.prepare import prepare

        return prepare(recipe, self.prepared, lambda line: print(line, flush=True))

    def train(
        self, recipe: str, *more: str, run: str = "run", text: bool = True, **environment: str
    ) -> "RunFolder":
        """`longhaul train` in processes of its own, with `more` settings; its run's folder.
        NotMeasured if it does not end well. Runs share their compiled code, as peers do, unless the
        `environment` has another place.
        """
        options = self.options(recipe, *more, text=text)
        return self.train_as_told(recipe, options, self.room / run, **environment)

    def train_as_told(
        self, recipe: str, options: Sequence[str], runs: Path, data: Path | None = None,
        **environment: str,
    ) -> "RunFolder":  # fmt: skip
        """The same with these settings and no others, in a folder `runs`, of another text."""
        from longhaul.config.load import load_recipe
        from longhaul.logbook.folder import RunFolder

        command = [sys.executable, "-m", "longhaul", "train", recipe, "--runs-dir", str(runs)]
        command += ["--prepared-dir", str(self.prepared), *sets(options)]
        command += [] if data is None else ["--data", str(data)]
        self.run(
            command, ROOT, **code_cache(Path(tempfile.gettempdir()) / "benchmarks") | environment
        )
        return RunFolder(runs / load_recipe(recipe, options).recipe.name)

    def run(self, command: list[str], folder: Path, **environment: str) -> str:
        """What a program printed; NotMeasured if it fails, or the part's time is over."""
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=max(1.0, self.left_s))
        except subprocess.TimeoutExpired as late:
            raise NotMeasured(f"{' '.join(command[1:4])}: no end within the part's time") from late
        finally:
            end(process)
        if process.returncode != 0:
            raise NotMeasured(f"exit code {process.returncode}: {last_words(printed)}")
        return printed

    def copy_of(self, checkout: Path, name: str) -> Path:
        """A copy of a peer's files to run it in."""
        folder = self.room / name
        skipped = shutil.ignore_patterns(".git", "records", "assets", "*.ipynb")
        shutil.copytree(checkout, folder, ignore=skipped)
        return folder


def packages() -> str:
    """The source of text: installed packages; torch alone in an environment that borrows them."""
    from longhaul.data.sources import package_folders

    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    torch = Path(found.origin).parent
    return "python-packages" if torch.parent in package_folders() else str(torch)


def end(process: "subprocess.Popen[Any]") -> None:
    """Leave none of a program's processes behind, those in sessions of their own included."""
    if process.poll() is not None:
        return
    left = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in left:
        with suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()


def last_words(printed: str) -> str:
    """The last two lines that say something, for a table: what, and what to do about it."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return " ".join(lines[-2:])[-300:] or "no word"
