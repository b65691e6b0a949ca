"""What an attempt may still write once another one has taken its run over."""

from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.core.clocks import TimeBuckets
from longhaul.core.errors import ExitCode, NotOwner
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.logbook.lease import Lease, acquire, join, leave_behind
from longhaul.logbook.ledger import LedgerState, load_ledger
from longhaul.logbook.run_history import read_run_history
from longhaul.logbook.run_log import RunLog
from longhaul.supervise.history import SupervisedRun


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "trial", FakeClock())


def book_of(folder: RunFolder, lease: Lease) -> RunLog:
    clock = FakeClock()
    return RunLog(folder, lease, read_run_history(folder), clock, TimeBuckets(clock))


def set_lr(run_log: RunLog, value: float) -> None:
    run_log.decide("set", 5, {"path": "optim.lr", "value": value}, who="anna", reason="")


def test_a_fenced_attempt_decides_nothing_and_learns_that_it_must_end(folder: RunFolder) -> None:
    clock = FakeClock()
    run_log = book_of(folder, acquire(folder, clock))
    set_lr(run_log, 1e-3)
    leave_behind(folder, 2, clock)
    with pytest.raises(NotOwner, match="another attempt has taken this run over") as raised:
        set_lr(run_log, 3.0)
    assert raised.value.exit_code is ExitCode.START_AGAIN
    assert run_log.ledger.overrides_at(5) == {"optim.lr": 1e-3}, "nor is it applied"
    run_log.emit("note", 5, text="what it records of itself may help whoever looks for the cause")
    run_log.close()
    next_attempt = book_of(folder, join(folder, 2, clock))
    assert next_attempt.ledger.overrides_at(5) == {"optim.lr": 1e-3}
    assert load_ledger(folder)[0].decisions == 1


def test_a_fenced_supervisor_poisons_no_checkpoint(folder: RunFolder) -> None:
    clock = FakeClock()
    lease = acquire(folder, clock)
    run = SupervisedRun(folder, lease, clock, say=str)
    leave_behind(folder, 2, clock)
    with pytest.raises(NotOwner):
        run.poison(20, "abc", 25, "the same crash")
    assert load_ledger(folder)[0] == LedgerState()
