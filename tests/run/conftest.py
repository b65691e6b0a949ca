"""Small runs of the `drill` recipe within the tests' own process."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from fakes import SilentView
from longhaul.core.errors import ExitCode
from longhaul.core.records import Decision, Event, Record
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.run.train.launch import Start, start
from longhaul.store.catalogue import catalogue
from longhaul.train.trainer import Trainer
from poison import poison
from small_runs import FEW_HELD_OUT


class Room:
    """A folder of runs, in which one run is trained, as often as it takes."""

    def __init__(self, path: Path, prepared: Path, options: tuple[str, ...]) -> None:
        self.path, self.prepared, self.options, self.said = path, prepared, options, ""
        self.folder = RunFolder(path / "drill")

    def train(self, steps: int, *options: str, view: SilentView | None = None) -> ExitCode:
        """Until it has made so many steps; what it says is in `said`, however it ends."""
        view = view or SilentView()
        typed = (*self.options, f"train.steps={steps}", *options)
        try:
            return start(Start("drill", typed, runs=self.path, prepared=self.prepared), view)
        finally:
            self.said = "\n".join(view.said)

    def records(self) -> list[Record]:
        return list(read_journal(self.folder))

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records() if isinstance(record, kind)]

    def events(self, kind: str) -> list[Event]:
        return [event for event in self.of(Event) if event.kind == kind]

    def recoveries(self) -> list[Decision]:
        """But for updates that were masked, which is all that was done about those."""
        made = [decision for decision in self.of(Decision) if decision.kind == "recover"]
        return [decision for decision in made if decision.data["actions"] != ["mask"]]

    def state(self) -> dict[str, bytes]:
        """Every tensor of the last checkpoint."""
        found = {}
        for path in sorted(catalogue(self.folder.checkpoints)[-1].path.glob("*.safetensors")):
            with safe_open(str(path), framework="numpy") as file:
                found |= {k: file.get_tensor(k).tobytes() for k in file.keys()}  # noqa: SIM118
        return found


@pytest.fixture(scope="module")
def new_room(request: pytest.FixtureRequest, prepared: Path) -> Callable[[Path], Room]:
    """A room at a path, whose runs have the options `TINY` of the tests' module."""
    return lambda path: Room(path, prepared, request.module.TINY)


@pytest.fixture
def room(tmp_path: Path, new_room: Callable[[Path], Room]) -> Room:
    return new_room(tmp_path / "runs")


@pytest.fixture
def poison_draws(monkeypatch: pytest.MonkeyPatch) -> Callable[[Collection[int]], None]:
    """Have the batches of some draws give NaN, whenever a step computes them."""
    return partial(poison, register=monkeypatch.setitem)


@pytest.fixture
def saves_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each checkpoint read back before the next step, however slow the disk is."""
    saved = Trainer.saved
    monkeypatch.setattr(Trainer, "saved", lambda self, wait=False: saved(self, wait=True))


@pytest.fixture(scope="session")
def sent(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Path:
    """The folder of runs with one of four steps, sent to the folder `store` beside it too."""
    place = tmp_path_factory.mktemp("sent")
    options = (
        FEW_HELD_OUT, "train.steps=4", "optim.schedule.warmup_steps=1", "batch.stages=[]",
        "checkpoint.interval_steps=2", "sample.tokens=4", "model.width=16", "model.layers=3",
        "machine.threads=1", f'checkpoint.remote=["{place / "store"}"]',
    )  # fmt: skip
    typed = Start("drill", options, runs=place / "runs", prepared=prepared)
    assert start(typed, SilentView()) is ExitCode.FINISHED
    return place / "runs"
