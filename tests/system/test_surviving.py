"""Snapshots that outlive workers: a death costs the steps since the last one, not since a save."""

import os
import signal

import pytest
from safetensors import safe_open

from longhaul.core.records import Event, StepRecord
from longhaul.store.catalogue import catalogue
from longhaul.supervise.leftovers import Traces
from longhaul.supervise.ownership import left_over

SMALL = (
    "--set", "train.steps=60", "--set", "optim.schedule.decay_steps=60",
    "--set", "optim.schedule.warmup_steps=2", "--set", "model.dropout=0.1",
    "--set", "model.width=16", "--set", "model.layers=1", "--set", "batch.stages=[]",
    "--set", "batch.sequences=8",
    "--set", "evaluation.interval_steps=0", "--set", "evaluation.tokens=256",
    "--set", "checkpoint.interval_steps=100", "--set", "checkpoint.snapshot_interval_steps=5",
)  # fmt: skip


def events(room, kind: str) -> list[Event]:
    return [r for r in room.records() if isinstance(r, Event) and r.kind == kind]


def is_step(at_least: int):
    return lambda record: isinstance(record, StepRecord) and record.step >= at_least


def weights(room) -> dict[str, bytes]:
    found = {}
    for path in sorted(catalogue(room.folder().checkpoints)[-1].path.glob("*.safetensors")):
        with safe_open(str(path), framework="numpy") as file:
            found |= {path.name + n: file.get_tensor(n).tobytes() for n in file.keys()}  # noqa: SIM118
    return found


def left_in_shared_memory(traces: Traces) -> list[str]:
    return [line for line in traces.leftovers() if line.startswith("shared memory")]


@pytest.mark.usefixtures("shared_memory_to_itself")
@pytest.mark.parametrize("nproc", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_killed_rank_goes_on_from_memory_in_the_bytes_of_an_undisturbed_run(
    room, nproc: int
) -> None:
    traces = Traces(room.folder(), room.runs / "nowhere")
    code, output = room.run("train", "drill", "--nproc", str(nproc), *SMALL)
    assert code == 0, output
    plain = weights(room)
    room.folder().path.rename(room.runs / "plain")

    process = room.start("train", "drill", "--nproc", str(nproc), *SMALL)
    room.wait_for("step 12", is_step(12))
    os.kill(left_over(room.folder())[-1].pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    [restored] = events(room, "restored")
    assert restored.step >= 10
    assert restored.step % 5 == 0
    assert restored.data["where"] == "memory"
    assert restored.data["newest_checkpoint"] is None
    assert restored.data["steps_lost"] <= 6
    started = events(room, "attempt-started")[-1]
    assert (started.data["resumed_from"], started.data["resumed_in"]) == (restored.step, "memory")
    assert f"restored step {restored.step} from memory" in output
    assert weights(room) == plain
    assert not left_in_shared_memory(traces)


def test_what_was_restored_from_memory_is_on_disk_once_the_run_is_stopped(room) -> None:
    process = room.start("train", "drill", *SMALL, "--set", "train.steps=100000")
    room.wait_for("step 7", is_step(7))
    os.kill(left_over(room.folder())[0].pid, signal.SIGKILL)
    room.wait_for("the next attempt", lambda r: isinstance(r, Event) and r.kind == "restored")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 16, output
    [restored] = events(room, "restored")
    assert [c.step for c in catalogue(room.folder().checkpoints)][-1] >= restored.step


@pytest.mark.parametrize("kills", [1, 2])
def test_a_notice_before_the_first_step_saves_what_lies_in_memory_alone(room, kills: int) -> None:
    process = room.start("train", "drill", *SMALL, "--set", "train.steps=100000")
    for attempt in range(1, kills + 1):
        room.wait_for(
            "steps",
            lambda r, a=attempt: isinstance(r, StepRecord) and r.attempt == a and r.step >= 7 * a,
        )
        seen = len(room.records())
        os.kill(left_over(room.folder())[-1].pid, signal.SIGKILL)
        room.wait_for(
            "its end", lambda r: isinstance(r, Event) and r.kind == "attempt-ended", after=seen
        )
    # The next attempt has begun, or is waited for after a second failure: no step may be lost.
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 16, output
    assert [c.step for c in catalogue(room.folder().checkpoints)][-1] >= 5 * kills


def test_memory_that_went_with_its_supervisor_leaves_the_disk(room) -> None:
    traces = Traces(room.folder(), room.runs / "nowhere")
    options = ("--set", "checkpoint.interval_steps=4", "--set", "train.steps=100000")
    process = room.start("train", "drill", *SMALL, *options)
    room.wait_for("step 7", is_step(7))
    room.kill(process)
    assert not left_in_shared_memory(traces)
    process = room.start("train", "drill")
    room.wait_for("a step", lambda r: isinstance(r, StepRecord) and r.attempt == 2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 16, output
    assert events(room, "restored") == []
    assert events(room, "attempt-started")[-1].data["resumed_in"] == "disk"
