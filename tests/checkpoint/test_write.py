import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fakes import FakeClock
from longhaul.checkpoint.write import needed_bytes, render_facts, write_checkpoint
from longhaul.core.errors import NotOwner
from longhaul.store.catalogue import catalogue, sweep


def steps_of_a_save(folder: Path, step: int, owner: bool = True, fill: float = 1.0):
    return write_checkpoint(
        folder,
        step=step,
        attempt=1,
        tensors={"w": torch.full((100,), fill)},
        facts=render_facts(step, 1, {}),
        still_owner=lambda: owner,
        clock=FakeClock(123.0),
    )


def test_it_is_chosen_from_the_moment_it_is_committed(tmp_path: Path) -> None:
    saving = steps_of_a_save(tmp_path / "checkpoints", 7)
    seen = [(stage, len(catalogue(tmp_path / "checkpoints"))) for stage, _, _ in saving]
    assert seen == [("written", 0), ("committed", 1), ("verified", 1)]
    (entry,) = catalogue(tmp_path / "checkpoints")
    assert (entry.step, entry.time) == (7, 123.0)
    assert entry.size_bytes <= needed_bytes({"w": torch.ones(100)}, render_facts(7, 1, {}))


def test_who_lost_the_lease_leaves_nothing_behind(tmp_path: Path) -> None:
    list(steps_of_a_save(tmp_path, 7, fill=1.0))
    before = catalogue(tmp_path)
    with pytest.raises(NotOwner):
        list(steps_of_a_save(tmp_path, 7, owner=False, fill=2.0))
    assert catalogue(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["step-7"]


def test_a_save_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    saving = steps_of_a_save(tmp_path, 7)
    next(saving)
    saving.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, torch.ones(1)])
def test_facts_that_json_cannot_hold_are_refused_at_once(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        render_facts(1, 1, {"trainer": {"value": value}})


KILLED_WHILE_SAVING = """
import sys, time
from pathlib import Path
import torch
from longhaul.checkpoint.write import render_facts, write_checkpoint
from longhaul.core.clocks import RealClock

def killed_here():
    print("manifest written", flush=True)
    time.sleep(600)

def save(step, still_owner):
    for _ in write_checkpoint(
        Path(sys.argv[1]), step=step, attempt=1, tensors={"w": torch.full((1000,), float(step))},
        facts=render_facts(step, 1, {}), still_owner=still_owner, clock=RealClock(),
    ):
        pass

save(5, lambda: True)
asked = iter((lambda: True, killed_here))  # before it begins, and before the commit
save(6, lambda: next(asked)())
"""


def test_a_process_killed_right_before_the_commit_leaves_nothing_to_choose(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_WHILE_SAVING, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"manifest written\n"
        finally:
            process.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".step-6.attempt-1.partial",
        "step-5",
    ]
    assert [(entry.step, entry.damage) for entry in catalogue(tmp_path)] == [(5, "")]
    sweep(tmp_path, current_attempt=2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-5"]
