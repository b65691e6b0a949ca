"""A live run that somebody spoils with one command ends as if nobody had."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import fmean

import pytest

from longhaul.core.records import Decision, StepRecord
from longhaul.supervise.ownership import left_over

STEPS, WHEN, NEVER_BEFORE = 700, 300, 200
TINY = (
    "--set", f"train.steps={STEPS}", "--set", "model.width=16", "--set", "model.layers=1",
    "--set", "model.context=32", "--set", "model.dropout=0.0", "--set", "batch.stages=[]",
    "--set", "batch.sequences=8", "--set", "batch.micro_sequences=8",
    "--set", "evaluation.interval_steps=0", "--set", "checkpoint.interval_steps=100",
)  # fmt: skip
DEADLINE_S = 60.0


@contextmanager
def frozen(room, process: subprocess.Popen[str]) -> Iterator[None]:
    """However long a command takes to start, the run stands where it stood."""
    everybody = [*(worker.pid for worker in left_over(room.folder())), process.pid]
    for pid in everybody:
        os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in everybody:
            os.killpg(pid, signal.SIGCONT)


def losses(room, name: str) -> list[float]:
    """Of each step, as it was made last."""
    made = {r.step: r.loss for r in room.records(name) if isinstance(r, StepRecord)}
    assert sorted(made) == list(range(1, STEPS + 1))
    return [made[step] for step in sorted(made)]


@pytest.mark.slow  # `tests/run/train/test_undone.py` has it within one process
def test_a_rate_set_a_thousand_times_too_high_in_a_live_run_costs_it_nothing_at_the_end(
    room,
) -> None:
    process = room.start("train", "drill", *TINY)
    seen = room.wait_for(f"step {WHEN}", lambda r: isinstance(r, StepRecord) and r.step >= WHEN)
    assert seen.step < STEPS
    with frozen(room, process):
        command = room.start("set", "drill", "optim.lr=3", "--force", "--reason", "a slip")
        deadline = time.monotonic() + DEADLINE_S
        while not list(room.folder().requests.glob("*.json")):
            assert command.poll() is None, command.communicate()[0]
            assert time.monotonic() < deadline, "the request did not come"
            time.sleep(0.02)
    said, _ = command.communicate(timeout=DEADLINE_S)
    assert command.returncode == 0, said
    output, _ = process.communicate(timeout=2 * DEADLINE_S)
    assert process.returncode == 0, output
    decisions = [r for r in room.records() if isinstance(r, Decision)]
    (asked,) = [d for d in decisions if d.kind == "set" and d.data["path"] == "optim.lr"]
    backs = [d for d in decisions if d.kind == "recover" and d.data["rollback"]]
    assert backs, output
    assert min(d.data["rollback"]["to"] for d in backs) >= NEVER_BEFORE
    first = backs[0]
    assert first.data["actions"] == ["rollback", "undo"], output
    assert first.data["rollback"]["to"] <= asked.step
    assert f"after {asked.who} set optim.lr 0.002 → 3 at step {asked.step}" in output

    code, output = room.run("train", "drill", "--new", *TINY)
    assert code == 0, output
    spoilt, alone = losses(room, "drill"), losses(room, "drill-2")
    assert fmean(spoilt[-50:]) <= 1.05 * fmean(alone[-50:])
