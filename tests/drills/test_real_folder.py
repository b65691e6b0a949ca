"""A run's folder that is deleted under the run, for real, while it trains and saves."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from longhaul.core.records import Event, StepRecord
from small_runs import HALF_A_STEP

pytestmark = pytest.mark.slow  # `make drills-real`

ENDLESS = (
    "--set", "train.steps=1000000", "--set", "optim.schedule.shape=constant",
    "--set", "evaluation.interval_steps=0", "--set", "batch.stages=[]",
    *(f"--set={option}" for option in HALF_A_STEP),
)  # fmt: skip
STEPS = tuple(f"--set={option}" for option in ("train.steps=120", *HALF_A_STEP))
ELASTIC = (
    "--set", "parallel.elastic=true", "--set", "machine.processes=2", "--set", "machine.threads=1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def impatient(room) -> None:
    """Ten seconds are long for a folder that is gone for good."""
    room.program = (str(Path(__file__).with_name("impatient.py")),)


def is_late_checkpoint(record) -> bool:
    saved = isinstance(record, Event) and record.data.get("health") == "verified"
    return saved and record.step >= 45


def delete(folder, wait_until) -> None:
    """As `rm -rf` does it: file by file, while somebody goes on writing."""

    def is_deleted() -> bool:
        shutil.rmtree(folder.path, ignore_errors=True)
        return not folder.path.exists()

    wait_until("the folder deleted", is_deleted)


def test_a_run_whose_folder_is_deleted_ends_loudly_and_does_not_make_it_anew(
    room, wait_until
) -> None:
    process = room.start("train", "drill", *ENDLESS)
    room.wait_for("a late checkpoint", is_late_checkpoint)
    delete(room.folder(), wait_until)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 17, output
    said = f"{room.folder().path}: the folder is not this run's any more"
    assert output.count(said) == 1, "its worker says so, and its supervisor passes that on"
    assert "run.json is missing" in output
    assert "training ends at step" in output
    assert "what it held is lost unless you moved it" in output
    assert "Traceback" not in output
    assert not room.folder().path.exists()


@pytest.mark.skipif(
    importlib.util.find_spec("torchft") is None,
    reason="torchft is not installed: replicas that come and go need the extra `ft`",
)
def test_replicas_whose_folder_is_deleted_end_as_loudly_and_all_of_them(room, wait_until) -> None:
    process = room.start("train", "drill", *ENDLESS, *ELASTIC)
    room.wait_for("a late checkpoint", is_late_checkpoint)
    replicas = children_of(process.pid)
    assert len(replicas) >= 2
    delete(room.folder(), wait_until)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 17, output
    assert f"{room.folder().path}: the folder is not this run's any more" in output
    assert "run.json is missing" in output
    assert "what it held is lost unless you moved it" in output
    assert "Traceback" not in output
    assert not room.folder().path.exists()
    wait_until("no replica left", lambda: not any(map(is_running, replicas)))


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_run_begun_where_another_was_deleted_ends_in_the_bytes_of_one_left_alone(
    room, wait_until, undisturbed, ends_like
) -> None:
    old = room.start("train", "drill", *ENDLESS)
    room.wait_for("a late checkpoint", is_late_checkpoint)
    delete(room.folder(), wait_until)
    code, output = room.run("train", "drill", *STEPS)
    assert code == 0, output
    said, _ = old.communicate(timeout=120)
    assert old.returncode == 17, said
    assert "is not this run's any more" in said
    started = [r for r in room.records() if isinstance(r, Event) and r.kind == "attempt-started"]
    assert [(r.attempt, r.data["resumed_from"]) for r in started] == [(1, None)]
    steps = [r.step for r in room.records() if isinstance(r, StepRecord)]
    assert steps == list(range(1, 121)), "nobody else wrote into its journal"
    ends_like(room.folder(), undisturbed)


def test_checkpoints_that_another_run_has_left_are_not_gone_on_from(
    room, undisturbed, ends_like
) -> None:
    """Cleared away by half: of the old run only the checkpoints are left."""
    process = room.start("train", "drill", *ENDLESS)
    room.wait_for("a late checkpoint", is_late_checkpoint)
    room.kill(process)
    left = sorted(path.name for path in room.folder().checkpoints.glob("step-*"))
    for path in room.folder().path.iterdir():
        if path != room.folder().checkpoints:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    code, output = room.run("train", "drill", *STEPS)
    assert code == 0, output
    assert "not known to this run's journal, moved to" in output
    aside = room.folder().checkpoints / "not-of-this-run"
    assert sorted(path.name for path in aside.iterdir()) == left
    ends_like(room.folder(), undisturbed)
