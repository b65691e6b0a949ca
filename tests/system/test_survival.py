"""What a run survives: signals, kills, a second owner, damaged files, a full disk."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from drills.resume import drill_resume
from longhaul.core.clocks import RealClock
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.lease import live_holder
from longhaul.logbook.reading import read_journal
from longhaul.supervise.ownership import left_over
from small_runs import FEW_HELD_OUT, HALF_A_STEP, is_verified

ENDLESS = (
    "--set", "train.steps=100000", "--set", "optim.schedule.shape=constant",
    "--set", "evaluation.interval_steps=1000",
)  # fmt: skip


def is_step(at_least: int):
    return lambda record: isinstance(record, StepRecord) and record.step >= at_least


def is_event(kind: str):
    return lambda record: isinstance(record, Event) and record.kind == kind


def test_a_killed_run_ends_in_the_very_bytes_of_an_undisturbed_one(tmp_path: Path) -> None:
    said: list[str] = []
    options = (*HALF_A_STEP, FEW_HELD_OUT, "train.steps=80", "checkpoint.interval_steps=10",
               "batch.stages=[{from_step=40, sequences=4, sequence_length=64}]")  # fmt: skip
    assert drill_resume(4, 1, tmp_path, said.append, options), "\n".join(said)
    assert any("byte-identical" in line for line in said)


def test_one_interrupt_saves_and_ends_and_the_run_goes_on_from_there(room) -> None:
    process = room.start("train", "drill", *ENDLESS)
    room.wait_for("step 5", is_step(5))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "finishing this step and saving" in output
    last = max(r.step for r in room.records() if isinstance(r, StepRecord))
    assert f"saved at step {last}" in output

    process = room.start("train", "drill")
    room.wait_for("the next step", is_step(last + 3))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 16, output
    steps = [r.step for r in room.records() if isinstance(r, StepRecord)]
    assert steps == list(range(1, steps[-1] + 1)), "no step was lost or made twice"
    assert not any(r.redone for r in room.records() if isinstance(r, StepRecord))


def has_signal(pid: int, which: str, number: signal.Signals) -> bool:
    """Whether a set of signals of a process, such as those that wait (`ShdPnd`), has one."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{which}:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def test_two_interrupts_end_at_once_and_nothing_is_broken(room, wait_until) -> None:
    process = room.start("train", "drill", *ENDLESS)
    room.wait_for("a verified checkpoint", is_verified)
    (worker,) = left_over(room.folder())
    os.kill(worker.pid, signal.SIGSTOP)  # it cannot save, however long the second one takes
    stopped = psutil.Process(worker.pid)  # until then it would take an interrupt first
    wait_until("the stop", lambda: stopped.status() == psutil.STATUS_STOPPED)
    made = max(r.step for r in room.records() if isinstance(r, StepRecord))
    process.send_signal(signal.SIGINT)
    wait_until(
        "the first one at the worker", lambda: has_signal(worker.pid, "ShdPnd", signal.SIGINT)
    )
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "SIGINT again: the run ends at once" in output
    assert "saved at step" not in output
    assert not left_over(room.folder())
    before = len(room.records())
    process = room.start("train", "drill")
    room.wait_for("a further step", is_step(1), after=before)
    started = [r for r in room.records() if is_event("attempt-started")(r)][-1]
    assert 0 < started.data["resumed_from"] <= made


@pytest.mark.parametrize("moment", ["imports", "the lease", "a worker's imports"])
def test_two_interrupts_in_start_up_end_with_130_and_no_traceback(
    room, wait_until, moment: str
) -> None:
    process = room.start("train", "drill", *ENDLESS)
    seen = {
        # Python itself, some hundredths of a second before, cannot be told otherwise.
        "imports": lambda: has_signal(process.pid, "SigCgt", signal.SIGUSR1),
        "the lease": lambda: bool(list(room.folder().leases.glob("[0-9]*.json"))),
        "a worker's imports": lambda: bool(left_over(room.folder())),
    }
    wait_until(moment, seen[moment])
    process.send_signal(signal.SIGINT)
    wait_until("the first one taken", lambda: not has_signal(process.pid, "ShdPnd", signal.SIGINT))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert not left_over(room.folder())
    assert live_holder(room.folder(), RealClock()) is None


def test_a_second_owner_is_told_who_holds_the_run(room) -> None:
    first = room.start("train", "drill", *ENDLESS)
    room.wait_for("the first step", is_step(1))
    code, output = room.run("train", "drill")
    assert code == 2
    assert f"process {first.pid} on {os.uname().nodename}" in output
    assert first.poll() is None


def test_a_lowered_rate_stays_lowered_after_sigkill(room) -> None:
    # Without a warm-up, within which the rate is lower still wherever the run goes back to.
    process = room.start("train", "drill", *ENDLESS, "--set", "optim.schedule.warmup_steps=0")
    room.wait_for("step 20", is_step(20))
    code, output = room.run("set", "drill", "optim.lr=1e-5", "--reason", "it looked hot")
    assert code == 0, output
    assert "0.002 → 1e-05" in output
    code, output = room.run("note", "drill", "watch this one")
    assert code == 0, output
    lowered = room.wait_for(
        "a step at the new rate", lambda r: isinstance(r, StepRecord) and r.learning_rate == 1e-5
    )
    assert lowered.segment == "1.01"
    room.kill(process)
    before = len(room.records())

    process = room.start("train", "drill")
    first = room.wait_for("a step after the restart", is_step(1), after=before)
    assert first.learning_rate == 1e-5, "whatever step it went back to"
    code, output = room.run("diff", "drill")
    assert code == 0, output
    assert "optim.lr" in output
    assert "1e-05" in output
    assert "it looked hot" in output
    code, output = room.run("stop", "drill")
    assert code == 0, output
    assert process.wait(60) == 16
    assert any(isinstance(r, Event) and r.kind == "note" for r in room.records())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("optim.lrr=1", "did you mean optim.lr?"),
        ("optim.lr=-1", "-1 is not > 0"),
        ("model.width=8", "cannot change while a run trains"),
        ("machine.threads=1", "longhaul train RECIPE --set machine.threads"),
    ],
)
def test_an_impossible_request_changes_nothing(room, change, told) -> None:
    tiny = ("--set", "train.steps=4", "--set", "optim.schedule.warmup_steps=1")
    assert room.run("train", "drill", *tiny)[0] == 0
    code, output = room.run("set", "drill", change)
    assert code == 2
    assert told in output
    assert not any(r.kind == "set" for r in room.records() if isinstance(r, Decision))


def test_a_damaged_checkpoint_is_refused_and_the_one_before_chosen(room) -> None:
    process = room.start("train", "drill", *ENDLESS)
    room.wait_for(
        "a second checkpoint", lambda r: is_verified(r) and isinstance(r, Event) and r.step >= 30
    )
    room.kill(process)
    newest = max(room.folder().checkpoints.glob("step-*"), key=lambda p: int(p.name[5:]))
    victim = next(newest.glob("*.safetensors"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    before = len(room.records())
    process = room.start("train", "drill")
    started = room.wait_for("the restart", is_event("attempt-started"), after=before)
    assert started.data["resumed_from"] < int(newest.name[5:])
    room.kill(process)
    output, _ = process.communicate()
    assert "refused" in output
    assert newest.name in output
    poisoned = [
        r for r in room.records() if isinstance(r, Decision) and r.data.get("health") == "poisoned"
    ]
    assert poisoned


def fill(path: Path) -> None:
    """Write until the disk takes nothing more."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (1 << 16, 1):
            while True:
                try:
                    os.write(descriptor, bytes(size))
                except OSError:
                    break
    finally:
        os.close(descriptor)


def test_a_full_disk_loses_a_save_and_nothing_else(room, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        (tmp_path / "runs").symlink_to(small)
        process = room.start("train", "drill", *ENDLESS)
        saved = room.wait_for("a verified checkpoint", is_verified)
        ballast = small / "ballast"
        fill(ballast)
        failed = room.wait_for("a failed save", is_event("checkpoint-failed"))
        assert "no space left" in failed.data["message"]
        assert "is intact" in failed.data["message"]
        room.wait_for("training to go on", is_step(failed.step + 5))
        ballast.unlink()
        room.wait_for(
            "a save once there is space",
            lambda r: is_verified(r) and isinstance(r, Event) and r.step > failed.step,
        )
        assert saved.step < failed.step
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        steps = [r.step for r in read_journal(room.folder(), events=False)]
        assert steps == list(range(1, steps[-1] + 1)), "the journal lost no step"
    finally:
        for process in room.processes:
            room.kill(process)
        subprocess.run(["umount", str(small)], check=False)
