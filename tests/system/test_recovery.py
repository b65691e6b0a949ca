"""The closed loop in real processes: decisions outlive the process that made them."""

import re

from longhaul.core.records import Decision, Event, Finding, StepRecord
from longhaul.logbook.ledger import load_ledger

SMALL = (
    "--set", "train.steps=100000", "--set", "optim.schedule.shape=constant",
    "--set", "model.width=32", "--set", "model.layers=1", "--set", "model.context=32",
    "--set", "batch.stages=[]", "--set", "batch.micro_sequences=16",
    "--set", "evaluation.interval_steps=0",
    "--set", "recover.probation_steps=20", "--set", "recover.margin_steps=20",
)  # fmt: skip
SOME_CHECKPOINTS = ("--set", "checkpoint.interval_steps=40")
ALL_CHECKPOINTS = (
    "--set", "checkpoint.interval_steps=10", "--set", "checkpoint.keep_last=1000",
)  # fmt: skip
"""However far the run gets while a command is being started, what it asks for is still there."""


def is_step(at_least: int):
    return lambda record: isinstance(record, StepRecord) and record.step >= at_least


def is_rollback(record) -> bool:
    return isinstance(record, Decision) and bool(record.data.get("rollback"))


def test_a_decision_and_its_budget_outlive_sigkill(room) -> None:
    process = room.start(
        "train", "drill", *SMALL, *SOME_CHECKPOINTS, "--set", "recover.max_recoveries=1",
        "--set", "recover.undo=false", "--set", "recover.diagnose=false",
    )  # fmt: skip
    room.wait_for("step 100", is_step(100))
    code, output = room.run("set", "drill", "optim.lr=10.0", "--reason", "far too high")
    assert code == 0, output
    decision = room.wait_for("a rollback", is_rollback)
    room.kill(process)
    assert "optim.lr" in decision.data["set"], decision.data
    lowered = decision.data["set"]["optim.lr"]
    assert decision.who == "policy"
    assert lowered < 10.0
    assert any(isinstance(r, Finding) and r.kind == decision.data["cause"] for r in room.records())
    before, seen = load_ledger(room.folder())[0], len(room.records())

    process = room.start("train", "drill")
    started = room.wait_for(
        "the restart", lambda r: isinstance(r, Event) and r.kind == "attempt-started", after=seen
    )
    # The run went on for a moment after it decided, and may have saved what came after.
    resumed_from = started.data["resumed_from"]
    assert before.checkpoint_health[resumed_from].health != "poisoned"
    assert started.data["live"]["matrix.lr"] == lowered, "although it was never saved"
    # Half of far too high is too high: the run diverges again, and its budget is spent.
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 17, output
    assert "recover.max_recoveries allows 1" in output
    after = load_ledger(room.folder())[0]
    assert after.recoveries[: len(before.recoveries)] == before.recoveries
    assert sum(is_rollback(record) for record in room.records()) == 1


def test_people_roll_back_and_fork_a_live_run(room) -> None:
    process = room.start("train", "drill", *SMALL, *ALL_CHECKPOINTS)
    room.wait_for("step 60", is_step(60))
    code, output = room.run("set", "drill", "optim.lr=3e-3", "--reason", "braver")
    assert code == 0, output
    code, output = room.run("rollback", "drill", "--to", "30", "--reason", "look again")
    assert code == 0, output
    assert "back to step 30" in output
    code, output = room.run(
        "fork", "drill", "--at", "20", "--set", "optim.lr=1e-4", "--reset", "optimizer"
    )
    assert code == 0, output
    assert "back to step 20; optim.lr = 0.0001; fresh optimizer" in output
    forked = room.wait_for(
        "a step of the fork", lambda r: isinstance(r, StepRecord) and r.segment == "2.00"
    )
    assert forked.warmup
    for wrong, told in (
        (("rollback", "drill", "--to", "999999"), "has made steps up to"),
        (("fork", "drill", "--at", "1", "--reset", "brain"), "reset brain: not one of"),
        (("fork", "drill", "--at", "1", "--set", "optim.lr=-1"), "-1 is not > 0"),
        (("fork", "drill", "--at", "1", "--set", "model.width=8"), "cannot change while"),
    ):
        code, output = room.run(*wrong)
        assert code == 2, output
        assert told in output
        assert "Traceback" not in output
    assert room.run("stop", "drill")[0] == 0
    output, _ = process.communicate(timeout=60)
    for told in (
        r"optim\.lr 0\.002 → 0\.003, as \S+ asked: braver",
        r"rolled back from step \d+ to step \d+, as \S+ asked: look again",
        r"forked at step \d+, as \S+ asked",
        r"stopping, as \S+ asked",
    ):
        assert re.search(told, output), f"{told} not in\n{output}"
