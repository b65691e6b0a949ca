"""What the drill of replicas refuses before it starts anything."""

import importlib.util
from pathlib import Path

import pytest

import drills.replicas
from drills.replica_verdict import Apart, Fate, Kill
from drills.replicas import Typed, Verdict, drill_replicas
from longhaul.core.errors import RecipeError, UsageError
from longhaul.supervise.run_process import RunProcess


@pytest.fixture(autouse=True)
def _nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*given: object, **named: object) -> RunProcess:
        raise AssertionError("a process was started")

    monkeypatch.setattr(drills.replicas, "start", start)


def test_who_lacks_torchft_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"install longhaul\[ft\]"):
        drill_replicas(Typed(), tmp_path, print)
    assert list(tmp_path.iterdir()) == []


def test_another_drills_runs_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills.replicas, "has_torchft", lambda: True)
    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "undisturbed" / "run.json").write_text('{"format": 1}')
    with pytest.raises(UsageError, match="a run of another drill"):
        drill_replicas(Typed(), tmp_path, print)


def test_a_recipe_that_replicas_cannot_train_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drills.replicas, "has_torchft", lambda: True)
    with pytest.raises(RecipeError, match=r"parallel\.tensor"):
        drill_replicas(Typed(sets=("parallel.tensor=2",)), tmp_path, print)


def test_a_verdict_tells_of_every_kill_and_of_whatever_is_wrong() -> None:
    fate = Fate(Kill(1, 0.0, 0.0, 340), 0.5, 2.1, 6.0, 5.0, 2, ())
    apart = Apart(soon=4e-7, ever=2e-4, means=1e-6)
    fine = Verdict((fate,), 2764, apart, 303.0, 2.1, (), ())
    told = list(fine.lines())
    assert fine.passed
    assert told[0] == "2,764 steps in 5 min 03 s, 1 kills"
    assert "replica 1 at step 340" in told[1]
    assert "healed by replica 2 after 5.0 s" in told[1]
    assert told[-1] == "left behind: no process, port, shared memory, temporary file"
    broken = Verdict((fate,), 2764, apart, 303.0, 2.1, ("process 7 (python)",), ("too bad",))
    assert not broken.passed
    assert list(broken.lines())[-2:] == ["left behind: process 7 (python)", "  too bad"]
