from collections.abc import Callable
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.run_spec import resolve_spec, write_run_spec
from longhaul.run.move.arrive import Arrival, arrive
from longhaul.run.move.leave import Departure, leave
from longhaul.store.manifest import Manifest, write_listed_file, write_manifest
from longhaul.store.store_files import StoreFiles
from longhaul.store.transfers import Patience
from small_runs import grown


def quiet(_: str) -> None:
    pass


def checkpoint(folder: RunFolder, step: int, content: bytes = b"state") -> Path:
    """A committed checkpoint of this run."""
    path = folder.checkpoints / f"step-{step}"
    path.mkdir(parents=True)
    files = [
        write_listed_file(path / "state.json", [content]),
        write_listed_file(path / "weights.bin", [content * 200_000]),
    ]
    write_manifest(path, Manifest(step=step, time=1e6 + step, files=tuple(files)))
    return path


class Pair:
    """Clusters `a` and `b`, each with a folder of runs and a store; a run of 30 steps in `a`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []
        run = grown(path / "a" / "x")
        write_run_spec(run, resolve_spec("drill", (), None, path / "prepared-a"))
        checkpoint(run, 10, b"ten")
        checkpoint(run, 20, b"twenty")

    def folder(self, cluster: str) -> RunFolder:
        return RunFolder(self.path / cluster / "x")

    def files(self, cluster: str) -> StoreFiles:
        patience = Patience(answer_s=5, first_pause_s=0.001, longest_pause_s=0.002)
        return StoreFiles(str(self.path / f"store-{cluster}" / "x"), patience=patience)

    def leave(self, source: str, destination: str, files: StoreFiles | None = None):
        asked = Departure(source, destination, "anna", "cheaper")
        files = files or self.files(destination)
        return leave(self.folder(source), asked, files, RealClock(), self.said.append)

    def arrive(self, here: str, source: str = "", files: StoreFiles | None = None, at: str = ""):
        asked = Arrival(here, source, self.path / f"prepared-{here}")
        folder = self.folder(at or here)
        return arrive(folder, asked, files or self.files(here), RealClock(), self.said.append)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.fixture
def add_checkpoint() -> Callable[..., Path]:
    return checkpoint
