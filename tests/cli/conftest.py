"""A small run that was really trained, for commands that read one."""

from pathlib import Path

import pytest

from fakes import SilentView
from longhaul.core.errors import ExitCode
from longhaul.run.train.launch import Start, start
from small_runs import FEW_HELD_OUT

OPTIONS = (
    FEW_HELD_OUT,
    "train.steps=4", "optim.schedule.warmup_steps=1", "checkpoint.interval_steps=2",
    "evaluation.interval_steps=2", "sample.tokens=4", "batch.stages=[]", "machine.threads=1",
    "supervise.deadline_s=600.0",
    "model.width=16", "model.layers=1",  # its checkpoints are copied hundreds of times
)  # fmt: skip


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder, `runs/drill`."""
    place = tmp_path_factory.mktemp("honest")
    typed = Start("drill", OPTIONS, runs=place / "runs", prepared=place / "prepared")
    assert start(typed, SilentView()) is ExitCode.FINISHED
    return place / "runs" / "drill"
