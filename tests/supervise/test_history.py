from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes import FakeClock
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.journal import Journal
from longhaul.logbook.ledger import load_ledger
from longhaul.supervise.history import SupervisedRun, failures, unaccounted


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "run", FakeClock())


def run_of(folder: RunFolder, attempt: int, clock: FakeClock) -> SupervisedRun:
    lease = SimpleNamespace(attempt=attempt, may_decide=lambda: True)
    return SupervisedRun(folder, lease, clock, say=str)


def failed(step: int | None, poisoned: int | None = None) -> dict:
    return {"cause": "killed", "remedy": "restart", "reached": step, "poisoned": poisoned}


def test_failures_are_remembered_by_whoever_watches_next(folder) -> None:
    clock = FakeClock()
    for attempt, data in enumerate([failed(7), failed(None, 20)], start=1):
        run_of(folder, attempt, clock).emit("attempt-ended", 7, {"detection": 1.0}, **data)
    leader = Journal(folder, 3)
    leader.append(Event(kind="attempt-ended", attempt=3, time=clock.wall(), data={"reason": "x"}))
    leader.close()
    assert [(f.step, f.went_back) for f in failures(folder)] == [(7, False), (None, True)]
    cost = failed(9) | {"cordoned": {"node-b": ["board:B"]}}
    run_of(folder, 4, clock).emit("attempt-ended", 9, {"detection": 1.0}, **cost)
    assert [f.cordoned for f in failures(folder)] == ["", "", "node-b"]


def test_a_checkpoint_that_is_given_up_is_so_for_every_reader(folder) -> None:
    run_of(folder, 1, FakeClock()).poison(20, "abc", 25, "the same crash")
    assert load_ledger(folder)[0].checkpoint_health[20].health == "poisoned"


def test_what_no_record_booked_is_detection_or_a_start(folder) -> None:
    assert unaccounted(folder, 1, began=100.0, now=103.0) == {"start-up": 3.0}
    leader = Journal(folder, 1)
    leader.append(Event(kind="attempt-started", attempt=1, time=110.0))
    leader.close()
    assert unaccounted(folder, 1, began=100.0, now=142.0) == {"detection": 32.0}
    assert unaccounted(folder, 2, began=150.0, now=151.0) == {"restart": 1.0}, "after one that died"


def test_what_is_told_of_other_replicas_is_no_sign_of_the_pilot(folder) -> None:
    leader = Journal(folder, 1)
    leader.append(Event(kind="note", attempt=1, time=110.0))
    leader.close()
    run = run_of(folder, 1, FakeClock(120.0))
    run.emit("replica-lost", 7)
    run.emit("replica-back", 7)
    assert unaccounted(folder, 1, began=100.0, now=142.0) == {"detection": 32.0}
