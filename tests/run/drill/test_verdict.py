import json
from pathlib import Path

import pytest

import longhaul.run.drill.drilled_run
from fakes import FakeClock
from longhaul.core.records import Event
from longhaul.logbook.folder import create_run
from longhaul.logbook.journal import Journal
from longhaul.run.drill.drilled_run import DrilledRun, Verdict, judge_run
from longhaul.run.drill.fault import parse_fault
from longhaul.run.drill.laid import Done, note_done
from longhaul.store.run_differences import Differences

SAME = Differences([], [], 90, 60)
OTHER = Differences(["__0_0 model.head.weight"], [17], 90, 60)


class Runs:
    """Two runs that have ended, and how their ends differ."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._patch = patch

    def run(self, name: str, loss: float, code: int = 0, left: tuple[str, ...] = ()) -> DrilledRun:
        folder = create_run(self._path / name, FakeClock())
        journal = Journal(folder, 1)
        journal.append(Event(kind="finished", attempt=1, time=9.0, data={"loss": loss}))
        journal.close()
        log = self._path / f"{name}.log"
        log.write_text("longhaul: something has gone wrong\n")
        return DrilledRun(folder, (code,), 60.0, left, log)

    def judged(
        self, run: DrilledRun, *faults: str, done: tuple[str, ...] | None = None,
        ends: Differences = SAME, back_to: int = 9,
    ) -> Verdict:  # fmt: skip
        for number, fault in enumerate(faults if done is None else done):
            note_done(run.folder, Done(number, fault, 0, "", 1, 5, 4.5))
        journal = Journal(run.folder, 2)
        for number, kind in enumerate(("attempt-started", "checkpoint")):
            journal.append(Event(kind=kind, attempt=2, step=back_to, time=5.0 + number))
        journal.close()
        self._patch.setattr(longhaul.run.drill.drilled_run, "differences", lambda *_, **__: ends)
        return judge_run(run, self.run("alone", 2.0), [parse_fault(f) for f in faults])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def only(verdict: Verdict) -> str:
    """The one complaint that is no other than that nothing went on in this made-up journal."""
    (found,) = (c for c in verdict.complaints if "went on" not in c)
    return found


def test_a_file_that_nobody_read_again_is_no_complaint(runs: Runs) -> None:
    verdict = runs.judged(runs.run("drilled", 2.0), "bitflip-file@rank0:step5")
    assert verdict.passed
    assert "byte-identical" in "\n".join(verdict.lines())


def test_dead_processes_may_not_change_a_byte(runs: Runs) -> None:
    verdict = runs.judged(runs.run("drilled", 2.0), "kill@rank0:step5", ends=OTHER)
    assert only(verdict).endswith("its baseline: __0_0 model.head.weight, step 17")
    assert "DIFFER" in "\n".join(verdict.lines())


@pytest.mark.parametrize(("loss", "passes"), [(2.03, True), (2.05, False), (float("nan"), False)])
def test_faults_in_numbers_may_cost_two_percent(runs: Runs, loss: float, passes: bool) -> None:
    run = runs.run("drilled", loss)
    verdict = runs.judged(run, "bitflip-grad@rank0:step5", ends=OTHER)
    assert any("of the other's, more than 1.02" in c for c in verdict.complaints) is not passes


def test_what_did_not_come_about_proves_nothing(runs: Runs) -> None:
    verdict = runs.judged(runs.run("drilled", 2.0), "enospc@rank0:step5", done=())
    assert only(verdict) == "enospc@rank0:step5 did not come about"


def test_what_is_left_behind_is_a_complaint(runs: Runs) -> None:
    run = runs.run("drilled", 2.0, left=("process 17 (python)",))
    verdict = runs.judged(run, "bitflip-file@rank0:step5")
    assert verdict.complaints == ("process 17 (python)",)
    assert "left behind: process 17 (python)" in verdict.lines()


def test_a_run_that_did_not_finish_is_not_compared(runs: Runs) -> None:
    verdict = runs.judged(runs.run("drilled", 2.0, code=17), "kill@rank0:step5")
    assert only(verdict).startswith(
        "it ended with exit code 17: longhaul: something has gone wrong"
    )
    assert verdict.as_data()["byte_identical"] is None
    assert json.loads(json.dumps(verdict.as_data(), allow_nan=False))["passed"] is False


def test_wrong_numbers_that_were_undone_may_not_change_a_byte(runs: Runs) -> None:
    run = runs.run("drilled", 2.0)
    journal = Journal(run.folder, 1)
    found = {"kind": "corrupt", "ranks": [], "among": [0, 1], "reason": "they differ"}
    journal.append(Event(kind="machine-verdict", attempt=1, time=4.6, data=found))
    journal.close()
    verdict = runs.judged(run, "bitflip-weight@rank0:step5", ends=OTHER, back_to=4)
    assert verdict.exact
    assert any("ended in other bytes" in complaint for complaint in verdict.complaints)


def test_a_rank_that_is_accused_though_no_fault_acted_on_it_is_a_complaint(runs: Runs) -> None:
    run = runs.run("drilled", 2.0)
    journal = Journal(run.folder, 1)
    slow = {"kind": "straggler", "ranks": [1], "reason": "rank 1 computes slower"}
    journal.append(Event(kind="machine-verdict", attempt=1, time=4.6, data=slow))
    journal.close()
    verdict = runs.judged(run, "slow:1.5@rank0:step5-50")
    assert only(verdict) == "rank 1 was named, and no fault acted on it: rank 1 computes slower"
