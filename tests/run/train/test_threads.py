"""The number of threads decides bits, and is a run's own as long as nobody changes it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import SilentView
from longhaul.config.load import load_recipe
from longhaul.config.recipe import Recipe
from longhaul.core.errors import ExitCode
from longhaul.core.machine import machine
from longhaul.core.records import Decision
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.logbook.segments import SegmentNumber, SegmentOpening, read_segments
from longhaul.parallel import device
from longhaul.parallel.device import settle_torch, threads_before
from longhaul.parallel.layout import LAYOUT
from longhaul.run.train.launch import Start, start
from small_runs import FEW_HELD_OUT


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def recipe(threads: int | None = None, processes: int = 1) -> Recipe:
    known = load_recipe("drill").recipe
    section = known.machine.model_copy(update={"threads": threads, "processes": processes})
    return known.model_copy(update={"machine": section})


def had(threads: int, settings: dict[str, Any] | None = None, **prints: Any) -> SegmentOpening:
    """The last segment of a run on this machine."""
    return SegmentOpening(
        number=SegmentNumber(1, 0), attempt=1, step=0, draw=0, reason="",
        settings={"machine": settings or {}}, opened=0.0,
        fingerprint={"machine": machine(), "torch": {"threads": threads}} | prints,
    )  # fmt: skip


def test_a_run_keeps_its_threads_on_the_same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert threads_before(recipe(), had(3), 1) == 3
    monkeypatch.setattr(device, "usable_cores", lambda: 8)
    settle_torch(recipe(), 1, 3)
    assert torch.get_num_threads() == 3
    settle_torch(recipe(), 4, 3)
    assert torch.get_num_threads() == 2, "more than there are cores would wait for each other"
    settle_torch(recipe(threads=5), 1, 3)
    assert torch.get_num_threads() == 5, "it was set"


def test_what_a_person_changes_is_not_kept() -> None:
    assert threads_before(recipe(), None, 1) is None
    assert threads_before(recipe(), had(3, {"threads": 3}), 1) is None, "it was set, and is no more"
    assert threads_before(recipe(processes=2), had(3), 2) is None
    assert threads_before(recipe(), had(3, ranks={"size": 4}), 2) is None
    assert threads_before(recipe(), had(3, ranks={"size": 4}), 4) == 3


def test_another_machine_uses_its_own_cores() -> None:
    other = machine() | {"cores": 512}
    assert threads_before(recipe(), had(3, machine=other), 1) is None
    assert threads_before(recipe(), replace(had(3), fingerprint={}), 1) is None, "an older run"
    assert threads_before(recipe(), had(3, torch={"threads": "many"}), 1) is None


def test_a_world_that_shrinks_computes_with_as_many_threads_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(LAYOUT, "1 1")
    assert threads_before(recipe(), had(3, ranks={"size": 4}), 1) == 3


def test_a_restart_with_more_cores_changes_no_bits_and_is_no_suspect(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler gives the same machine's cores anew at each start."""
    file = tmp_path / "mine.toml"
    shipped = Path(device.__file__).parents[1] / "recipes" / "drill.toml"
    lines = shipped.read_text().splitlines(keepends=True)
    text = "".join(line for line in lines if not line.startswith("threads"))
    file.write_text(text.replace('"drill"', '"mine"'))
    options = (FEW_HELD_OUT, "train.steps=4", "optim.schedule.warmup_steps=1", "batch.stages=[]",
               "evaluation.interval_steps=0", "checkpoint.interval_steps=2",
               "optim.schedule.shape=constant")  # fmt: skip
    found = []
    for cores, steps in ((1, 4), (2, 6), (2, 8)):
        monkeypatch.setattr(device, "usable_cores", lambda cores=cores: cores)
        more = ("machine.threads=2",) if steps == 8 else ()
        typed = Start(str(file), (*options, f"train.steps={steps}", *more),
                      runs=tmp_path / "runs", prepared=prepared)  # fmt: skip
        assert start(typed, SilentView()) is ExitCode.FINISHED
        folder = RunFolder(next((tmp_path / "runs").iterdir()))
        opened = max(read_segments(folder), key=lambda one: one.opened)
        found.append(opened.fingerprint["torch"]["threads"])
    assert found == [1, 1, 2], "the second start is told nothing of threads, the third is"
    decisions = [record for record in read_journal(folder) if isinstance(record, Decision)]
    changed = [d.data["surroundings"] for d in decisions if d.kind == "restart"]
    assert ["torch.threads" in pairs for pairs in changed] == [False, True]
