"""The supervisor with real processes: stubs that know no torch, and longhaul's own worker."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.reading import read_journal
from longhaul.supervise.ownership import left_over
from small_runs import is_verified

HERE = Path(__file__).parent
DEADLINE_S = 60.0


def wait_until(what: str, seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not seen():
        assert time.monotonic() < deadline, f"{what} did not come within {DEADLINE_S:g} s"
        time.sleep(0.01)


def act(rank: int, what: str, step: int = 15, attempts: int = 1) -> dict:
    return {"rank": rank, "step": step, "do": what, "attempts": attempts}


def test_a_killed_rank_is_named_and_all_start_again(stubs) -> None:
    stubs.plot(act(1, "kill"))
    code, output = stubs.run()
    assert code == 0, output
    (failure,) = stubs.failures()
    assert (failure.data["cause"], failure.data["rank"]) == ("killed", 1)
    assert failure.data["exit_codes"][1] == -9
    assert failure.data["reached"] in (15, 16), "the others reach the next one, and wait there"
    assert failure.seconds, "the time it took to notice is booked"
    assert "rank 1: killed (SIGKILL, " in output
    assert not left_over(stubs.folder)
    assert sorted(p.stem for p in stubs.folder.leases.iterdir()) == ["000001", "000002"]


@pytest.mark.parametrize(
    ("what", "why"),
    [("stop", "is stopped by a signal"), ("loop", "is at step 15, the others at 16")],
)
def test_a_rank_that_hangs_is_named_with_its_host(stubs, what, why) -> None:
    stubs.plot(act(1, what))
    code, output = stubs.run()
    assert code == 0, output
    (failure,) = stubs.failures()
    assert (failure.data["cause"], failure.data["rank"]) == ("hang", 1)
    assert f"rank 1 on {os.uname().nodename} {why}" in failure.data["said"]
    assert "no rank gave a sign of life" in output


def test_the_stacks_of_a_hang_are_kept(stubs) -> None:
    stubs.plot(act(0, "loop", attempts=9), settings={"restarts_per_day": 0})
    code, output = stubs.run()
    assert code == 17, output
    assert "restarts_per_day is 0" in output
    looping = (stubs.folder.workers / "0.stacks").read_text()
    assert "in do" in looping
    assert "in wait_for_others" in (stubs.folder.workers / "2.stacks").read_text()


def test_the_culprit_is_told_from_those_who_died_of_its_death(stubs) -> None:
    stubs.plot(act(0, "leave", step=20), act(2, "raise", step=20))
    code, output = stubs.run()
    assert code == 0, output
    (failure,) = stubs.failures()
    assert failure.data["rank"] == 2
    assert failure.data["said"].startswith("ValueError: the culprit, at 0x7f00aa")
    assert failure.data["cause"] == "unknown: ValueError: the culprit, at …"
    assert "rank 2 said: ValueError: the culprit" in output


def test_what_is_known_of_a_device_holds_in_the_first_attempt_too(stubs) -> None:
    own = stubs.folder.path / "own.toml"
    own.write_text(
        "format = 1\n[[signature]]\ncause = 'loose-riser'\nremedy = 'restart'\n"
        "text = 'the culprit'\ndevice = 'H100'\n"
    )
    stubs.plot(act(1, "raise"), device="NVIDIA H100", settings={"signatures": str(own)})
    code, output = stubs.run()
    assert code == 0, output
    assert [failure.data["cause"] for failure in stubs.failures()] == ["loose-riser"]


def test_ranks_that_have_lost_each_other_start_again(stubs) -> None:
    stubs.plot(*(act(rank, "part") for rank in range(3)))
    code, output = stubs.run()
    assert code == 0, output
    assert [failure.data["cause"] for failure in stubs.failures()] == ["collective-failed"]


@pytest.mark.parametrize("code", [2, 3, 17])
def test_a_persons_mistake_is_told_once_and_not_retried(stubs, code) -> None:
    stubs.plot(act(1, f"exit {code}", attempts=9))
    ended, output = stubs.run()
    assert ended == code, output
    assert f"rank 1 said: longhaul: exit {code} is wrong" in output
    assert not stubs.failures()
    assert len(list(stubs.folder.leases.iterdir())) == 1


def test_the_same_crash_goes_further_back_and_then_to_a_person(stubs) -> None:
    stubs.plot(act(0, "raise", step=25, attempts=99), processes=1)
    code, output = stubs.run()
    assert code == 17, output
    reached = [failure.data["reached"] for failure in stubs.failures()]
    assert reached == [25, 25, 25, 25]
    decisions = [r for r in read_journal(stubs.folder, steps=False) if isinstance(r, Decision)]
    assert [d.data["checkpoint"] for d in decisions] == [20]
    assert decisions[0].data["health"] == "poisoned"
    assert "going back to step 10" in output
    assert "from an older checkpoint too" in output


def test_a_new_supervisor_remembers_the_failures_before_it(stubs) -> None:
    stubs.plot(act(0, "raise", step=5, attempts=99), processes=1)
    assert stubs.run()[0] == 17
    assert len(stubs.failures()) == 3
    code, output = stubs.run()
    assert code == 17, output
    assert len(stubs.failures()) == 4, "it is not tried three times again"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_schedulers_notice_saves_and_ends_with_16(stubs, number) -> None:
    stubs.plot(steps=10**6)
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step() >= 3)
    process.send_signal(number)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 16, output
    assert not left_over(stubs.folder)
    assert not stubs.failures()


def test_a_notice_before_the_first_step_ends_ranks_that_are_deaf(stubs) -> None:
    stubs.plot(act(0, "loop", step=0), act(1, "leave-well", step=0), processes=2,
               settings={"deadline_s": 30.0})  # fmt: skip
    process = stubs.start()
    wait_until("the end of rank 1", lambda: [w.rank for w in left_over(stubs.folder)] == [0])
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 16, output
    assert not stubs.failures()


def test_a_missed_notice_is_loud(stubs) -> None:
    stubs.plot(deaf=True, settings={"grace_s": 0.2}, processes=1)
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step() >= 3)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert "no checkpoint within the grace period of 0.2 s" in output
    events = [r for r in read_journal(stubs.folder, steps=False) if isinstance(r, Event)]
    assert any(event.kind == "preemption-missed" for event in events)


def test_one_interrupt_is_passed_on_and_a_second_one_ends_at_once(stubs) -> None:
    stubs.plot(steps=10**6)
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step() >= 3)
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    stubs.plot(deaf=True, steps=10**6, settings={"grace_s": 0.1})
    process = stubs.start()
    for _ in range(2):  # all have begun; and the deaf ones go on
        from_step = stubs.step()
        wait_until("further steps", lambda: stubs.step() >= max(from_step, 1) + 20)  # noqa: B023
        process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, output
    assert "ends at once at step" in output
    assert "the newest checkpoint is that of step" in output
    assert not left_over(stubs.folder)


def test_a_pause_stops_the_workers_and_is_no_hang(stubs) -> None:
    stubs.plot(steps=150, settings={"deadline_s": 1.0})
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step() >= 3)
    wait_until("the notes", lambda: len(left_over(stubs.folder)) == 3)
    process.send_signal(signal.SIGTSTP)
    wait_until("the pause", lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    paused_at = time.monotonic()
    workers = [psutil.Process(worker.pid) for worker in left_over(stubs.folder)]
    stopped = {psutil.STATUS_STOPPED}
    wait_until("a pause of all", lambda: {worker.status() for worker in workers} == stopped)
    wait_until("the deadline to pass", lambda: time.monotonic() - paused_at > 1.5)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert not stubs.failures()


def test_a_scheduler_that_suspends_a_whole_job_makes_no_hang_of_it(stubs) -> None:
    stubs.plot(steps=100, settings={"deadline_s": 2.0})
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step() >= 3 and len(left_over(stubs.folder)) == 3)
    workers = [worker.pid for worker in left_over(stubs.folder)]

    def after(seconds: float, number: signal.Signals, *pids: int) -> None:
        began = time.monotonic()
        wait_until("its turn", lambda: time.monotonic() - began > seconds)
        for pid in pids:
            os.kill(pid, number)

    after(0.0, signal.SIGSTOP, process.pid, *workers)
    after(2.5, signal.SIGCONT, process.pid)
    after(0.8, signal.SIGCONT, *workers)  # it has looked at them by then
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, output
    assert not stubs.failures()


def test_workers_end_themselves_once_their_supervisor_is_dead(stubs) -> None:
    stubs.plot(act(1, "loop", step=5), act(2, "loop", step=5), grace_s=1.0,
               settings={"deadline_s": 30.0})  # fmt: skip
    process = stubs.start()
    wait_until("step 3", lambda: stubs.step() >= 3 and len(left_over(stubs.folder)) == 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_until("the end of all workers", lambda: not left_over(stubs.folder))
    assert "supervisor has died" in (stubs.folder.workers / "1.log").read_text()
    code, output = stubs.run()
    assert code == 0, output


def test_the_next_supervisor_ends_a_worker_that_does_not_end_itself(stubs) -> None:
    stubs.plot(act(1, "stop"), settings={"deadline_s": 30.0, "grace_s": 0.5})
    process = stubs.start()
    wait_until("the stop", lambda: stubs.step() >= 16 and len(left_over(stubs.folder)) == 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 1 in {worker.rank for worker in left_over(stubs.folder)}
    code, output = stubs.run()
    assert code == 0, output
    assert "rank 1, process" in output
    assert "killed" in output


SMALL = (
    "--set", "train.steps=100000", "--set", "optim.schedule.shape=constant",
    "--set", "evaluation.interval_steps=0", "--set", "checkpoint.interval_steps=20",
)  # fmt: skip


def is_step(at_least: int):
    return lambda record: isinstance(record, StepRecord) and record.step >= at_least


def test_a_real_rank_that_is_killed_lets_all_go_on_from_a_checkpoint(room) -> None:
    process = room.start("train", "drill", "--nproc", "2", *SMALL)
    saved = room.wait_for("a checkpoint", is_verified)
    _, worker = left_over(room.folder())
    os.kill(worker.pid, signal.SIGKILL)
    room.wait_for(
        "a step of the next attempt", lambda r: isinstance(r, StepRecord) and r.attempt == 2
    )
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 16, output
    assert "rank 1: killed" in output
    log = (room.folder().workers / "0.log").read_text()
    assert "restart from step" in log
    assert "rank 1: killed" in log, "the new segment says why it was opened"
    events = [r for r in room.records() if isinstance(r, Event)]
    started = [e for e in events if e.kind == "attempt-started"]
    assert started[1].data["resumed_from"] >= saved.step > 0


def test_a_run_whose_supervisor_is_killed_saves_and_loses_no_step(room) -> None:
    process = room.start("train", "drill", *SMALL)
    room.wait_for("step 5", is_step(5))
    assert left_over(room.folder())
    process.kill()
    process.communicate()
    wait_until("the worker's end", lambda: not left_over(room.folder()))
    last = max(r.step for r in room.records() if isinstance(r, StepRecord))
    process = room.start("train", "drill")
    room.wait_for("further steps", is_step(last + 2))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 16, output
    assert f"restart from step {last} (its supervisor died)" in output
