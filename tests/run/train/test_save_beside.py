"""A save whose copy is made as late as it may be, while the next step is under way."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import safe_open

from fakes import SilentView
from longhaul.checkpoint.host_buffers import Staging
from longhaul.checkpoint.saver import Saver
from longhaul.core.errors import ExitCode
from longhaul.core.files import moved
from longhaul.logbook.folder import RunFolder
from longhaul.run.train.launch import Start, start
from longhaul.store.catalogue import catalogue
from longhaul.supervise.ranks.progress import progress_path, read_progress
from longhaul.train.step import TrainingStep
from small_runs import FEW_HELD_OUT

TINY = (
    FEW_HELD_OUT,
    "train.steps=9", "optim.schedule.decay_steps=9", "optim.schedule.warmup_steps=2",
    "model.width=16", "model.layers=1", "model.context=32", "model.dropout=0.1",
    "batch.stages=[]", "batch.sequence_length=32", "evaluation.interval_steps=0",
    "evaluation.tokens=256", "checkpoint.interval_steps=2", "checkpoint.keep_last=9",
)  # fmt: skip
Bytes = dict[int, dict[str, bytes]]


def checkpoints(path: Path, prepared: Path) -> Bytes:
    """Train; by step, what its checkpoint holds."""
    code = start(Start("drill", TINY, runs=path, prepared=prepared), SilentView())
    assert code is ExitCode.FINISHED
    found: Bytes = {}
    for entry in catalogue(RunFolder(path / "drill").checkpoints):
        [file] = entry.path.glob("*.safetensors")
        with safe_open(str(file), framework="numpy") as opened:
            names = opened.keys()
            found[entry.step] = {name: opened.get_tensor(name).tobytes() for name in names}
    return found


def test_checkpoints_hold_the_state_at_the_border_however_late_they_are_copied(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = checkpoints(tmp_path / "at-once", prepared)
    assert sorted(at_once) == [2, 4, 6, 8, 9]
    copy, settle, compute = Staging.copy, Saver.settle, TrainingStep.compute
    wanted, beside = threading.Event(), []

    def late(staging: Staging) -> None:
        if staging._on_host:  # the last state is at rest, and written from where it is
            assert wanted.wait(30)
        copy(staging)

    def asked(saver: Saver) -> None:
        wanted.set()
        settle(saver)
        wanted.clear()

    def passes(step: TrainingStep, *given: object, **named: object) -> object:
        made = compute(step, *given, **named)
        beside.append(savers[-1].copying if savers else False)
        return made

    def remembered(saver: Saver, *given: object, **named: object) -> None:
        initialise(saver, *given, **named)
        savers.append(saver)

    savers: list[Saver] = []
    initialise = Saver.__init__
    monkeypatch.setattr(Saver, "__init__", remembered)
    monkeypatch.setattr(Staging, "copy", late)
    monkeypatch.setattr(Saver, "settle", asked)
    monkeypatch.setattr(TrainingStep, "compute", passes)
    assert checkpoints(tmp_path / "late", prepared) == at_once
    # The passes of the step after each save were made before anything of the state was copied.
    assert [step for step, copying in enumerate(beside) if copying] == [2, 4, 6, 8]


def test_the_last_save_is_waited_for_with_signs_of_life_while_its_bytes_move(
    tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog ends what is silent for too long; a big save on a slow disk is not."""
    progress = progress_path(RunFolder(tmp_path / "drill"), 0)
    stages, signs, deadline = Saver._stages, set(), time.monotonic() + 30

    def slowly(saver: Saver, step: int, facts: bytes) -> Iterator[object]:
        yield from stages(saver, step, facts)
        while step == 9 and len(signs) < 5 and time.monotonic() < deadline:
            moved(1)
            time.sleep(0.001)
            said = read_progress(progress)
            if said is not None and said.phase == "save":
                signs.add(said.sign)

    monkeypatch.setattr(Saver, "_stages", slowly)
    monkeypatch.setattr("longhaul.checkpoint.saver._LOOK_EVERY_S", 0.01)
    checkpoints(tmp_path, prepared)
    assert len(signs) == 5
