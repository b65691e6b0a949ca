import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from longhaul.core.clocks import RealClock
from longhaul.logbook.folder import RunFolder, create_run
from longhaul.run.drill.fault import parse_fault
from longhaul.run.drill.injection import RankFaults, out_of_memory
from longhaul.run.drill.laid import (
    NO_ROUTE,
    Done,
    kernel_messages,
    lay,
    note_done,
    read_done,
    refuse_if_gone,
)
from longhaul.supervise.causes import Death, classify, load_signatures

TRAINER = SimpleNamespace(training_step=SimpleNamespace(device=torch.device("cpu")))
"""Faults that do not touch a trainer look at its device alone."""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path / "run", RealClock())


def faults_of(folder: RunFolder, rank: int = 0, attempt: int = 1, node: str = "") -> RankFaults:
    environment = {"RANK": str(rank), "LONGHAUL_ATTEMPT": str(attempt), "LONGHAUL_NODE": node}
    return RankFaults(folder, environment | {"LOCAL_RANK": str(rank)})


def lay_down(folder: RunFolder, *texts: str) -> None:
    lay(folder, [parse_fault(text) for text in texts])


def steps_hit(made: RankFaults, steps: range) -> list[int]:
    """Steps before which an exception was raised."""
    hit = []
    for step in steps:
        try:
            made.begin(TRAINER, step)
        except RuntimeError:
            hit.append(step)
    return hit


def test_a_fault_befalls_its_rank_at_its_step_and_never_again(folder: RunFolder) -> None:
    lay_down(folder, "exception@rank1:step5")
    assert steps_hit(faults_of(folder, rank=0), range(1, 10)) == []
    assert steps_hit(faults_of(folder, rank=1), range(1, 10)) == [5]
    assert steps_hit(faults_of(folder, rank=1, attempt=2), range(1, 10)) == []
    (done,) = read_done(folder)
    assert (done.fault, done.rank, done.attempt, done.step) == ("exception@rank1:step5", 1, 1, 5)


def test_a_step_that_a_restart_passes_over_is_made_up_for(folder: RunFolder) -> None:
    lay_down(folder, "exception@rank0:step5")
    assert steps_hit(faults_of(folder), range(8, 12)) == [8]


def test_the_same_fault_laid_twice_befalls_twice(folder: RunFolder) -> None:
    lay_down(folder, "exception@rank0:step5", "exception@rank0:step5")
    first = faults_of(folder)
    assert steps_hit(first, range(5, 6)) == [5]
    assert steps_hit(faults_of(folder, attempt=2), range(5, 8)) == [5]
    assert steps_hit(faults_of(folder, attempt=3), range(5, 8)) == []


def test_a_fault_of_every_attempt_comes_in_each_at_its_step(folder: RunFolder) -> None:
    lay_down(folder, "exception@rank0:step5:attempt*")
    for attempt in (1, 2, 3):
        assert steps_hit(faults_of(folder, attempt=attempt), range(1, 9)) == [5]
    assert [done.attempt for done in read_done(folder)] == [1, 2, 3]


def test_a_fault_of_one_attempt_waits_for_it(folder: RunFolder) -> None:
    lay_down(folder, "exception@rank0:step5:attempt2")
    assert steps_hit(faults_of(folder, attempt=1), range(1, 9)) == []
    assert steps_hit(faults_of(folder, attempt=2), range(1, 9)) == [5]


def test_what_lasts_acts_in_all_of_its_steps_and_no_other(folder: RunFolder) -> None:
    lay_down(folder, "slow:1.5@rank0:step3-5", "nan@rank0:step4")
    made, seen = faults_of(folder), {}
    for step in range(1, 8):
        made.begin(TRAINER, step)
        seen[step] = sorted(made.acting)
    acting = {3: ["slow"], 4: ["nan", "slow"], 5: ["slow"]}
    assert seen == {step: acting.get(step, []) for step in range(1, 8)}
    assert len(read_done(folder)) == 2


def test_faults_laid_while_a_run_trains_are_seen_at_the_next_step(folder: RunFolder) -> None:
    lay_down(folder)
    made = faults_of(folder)
    assert steps_hit(made, range(1, 4)) == []
    lay_down(folder, "exception@rank0:step1")
    assert steps_hit(made, range(4, 6)) == [4]


@pytest.mark.parametrize(("name", "number"), [("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)])
def test_a_fault_is_remembered_before_it_is_done(
    folder: RunFolder, name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    struck = []

    def strike(pid: int, what: int) -> None:
        struck.append((pid, what, len(read_done(folder))))

    monkeypatch.setattr(os, "kill", strike)
    lay_down(folder, f"{name}@rank0:step2")
    faults_of(folder).begin(TRAINER, 2)
    assert struck == [(os.getpid(), number, 1)]


def test_a_node_is_befallen_whole_or_at_its_first_rank(folder: RunFolder) -> None:
    lay_down(folder, "exception@nodeA:step2", "ecc@nodeB:step2")
    assert steps_hit(faults_of(folder, rank=0, node="A"), range(1, 4)) == [2]
    assert steps_hit(faults_of(folder, rank=1, node="A"), range(1, 4)) == [2]
    assert steps_hit(faults_of(folder, rank=1, node="B"), range(1, 4)) == []
    assert steps_hit(faults_of(folder, rank=0, node="B"), range(1, 4)) == [2]


def test_a_node_that_has_gone_starts_nothing_for_a_while(
    folder: RunFolder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note_done(folder, Done(0, "node-gone:30@nodeA:step2", 0, "A", 1, 2, time.time()))
    monkeypatch.setenv("LONGHAUL_NODE", "A")
    with pytest.raises(SystemExit) as refused:
        refuse_if_gone(folder)
    assert refused.value.code == NO_ROUTE
    assert "No route to host" in capfd.readouterr().err
    monkeypatch.setenv("LONGHAUL_NODE", "B")
    refuse_if_gone(folder)


def test_a_node_that_is_back_starts_again(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_done(folder, Done(0, "node-gone:30@nodeA:step2", 0, "A", 1, 2, time.time() - 31))
    monkeypatch.setenv("LONGHAUL_NODE", "A")
    refuse_if_gone(folder)


def test_what_lasts_for_a_while_begins_at_its_chance_and_outlives_a_restart(
    folder: RunFolder,
) -> None:
    lay_down(folder, "enospc:60@rank0:step3")
    made = faults_of(folder)
    made.begin(TRAINER, 2)
    assert made.until("enospc") is None
    made.begin(TRAINER, 3)
    assert read_done(folder) == []  # nothing was written yet
    until = made.until("enospc")
    (done,) = read_done(folder)
    assert until == done.time + 60
    assert faults_of(folder, attempt=2).until("enospc") == until
    assert faults_of(folder, rank=1).until("enospc") is None


def cause_of(error: BaseException, kernel: str = "") -> str:
    text = f"Traceback …\n{type(error).__name__}: {error}\n"
    return classify(Death(0, 1, text, kernel), load_signatures()).name


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("cuda-error@rank0:step1", "cuda-error"),
        ("cuda-error:assert@rank0:step1", "cuda-error"),
        ("cuda-error:ecc@rank0:step1", "ecc-uncorrectable"),
    ],
)
def test_device_errors_read_as_the_real_ones(folder: RunFolder, fault: str, cause: str) -> None:
    lay_down(folder, fault)
    with pytest.raises(RuntimeError) as raised:
        faults_of(folder).begin(TRAINER, 1)
    assert cause_of(raised.value) == cause


def test_running_out_of_memory_reads_as_the_real_thing() -> None:
    error = out_of_memory(4)
    assert isinstance(error, torch.OutOfMemoryError)
    assert cause_of(error) == "out-of-memory"


@pytest.mark.parametrize(
    ("xid", "cause", "dies"),
    [(48, "ecc-uncorrectable", True), (79, "gpu-lost", True), (63, "gpu-error", False)],
)
def test_the_kernel_tells_of_a_gpu(folder: RunFolder, xid: int, cause: str, dies: bool) -> None:
    before = time.monotonic()
    lay_down(folder, f"ecc:{xid}@rank0:step1")
    assert bool(steps_hit(faults_of(folder), range(1, 2))) is dies
    lines = "\n".join(kernel_messages(folder, [], before, node=""))
    assert classify(Death(0, 1, "", lines), load_signatures()).name == cause
    assert kernel_messages(folder, ["real"], time.monotonic(), node="") == ["real"]
    assert kernel_messages(folder, [], before, node="A") == []
