"""Real runs whose checkpoints also lie elsewhere: in S3, in a folder that is away for a while."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from longhaul.core.clocks import RealClock
from longhaul.core.records import Decision, Event, StepRecord
from longhaul.logbook.requests import submit
from longhaul.logbook.segments import read_segments

OPTIONS = (
    "--set", "train.steps=100000", "--set", "optim.schedule.shape=constant",
    "--set", "evaluation.interval_steps=1000", "--set", "checkpoint.interval_steps=10",
)  # fmt: skip
DEADLINE_S = 60


def is_event(kind: str, at_least: int = 0):
    return lambda r: isinstance(r, Event) and r.kind == kind and r.step >= at_least


def events(room, kind: str) -> list[Event]:
    return [r for r in room.records() if isinstance(r, Event) and r.kind == kind]


def ask(room, kind: str, **data: object) -> None:
    submit(room.folder(), kind, data, who="anna", reason="asked", clock=RealClock())


def stopped(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, output
    return output


@pytest.mark.slow  # what comes back when all is lost comes back in the other test of S3
def test_a_run_whose_local_checkpoints_are_gone_goes_on_from_s3(room, bucket: str) -> None:
    remote = ("--set", f"checkpoint.remote='{bucket}'")
    process = room.start("train", "drill", *OPTIONS, *remote)
    sent = room.wait_for("a checkpoint in S3", is_event("uploaded", 20))
    assert sent.data["tier"] == "s3://bucket/runs/drill"
    stopped(process)
    newest = max(e.step for e in events(room, "uploaded"))
    shutil.rmtree(room.folder().checkpoints)

    process = room.start("train", "drill", *remote)
    fetched = room.wait_for("a checkpoint from S3", is_event("fetched"))
    # One may have arrived there without the run having been told before it was stopped.
    assert fetched.step >= newest
    newest = fetched.step
    room.wait_for("the next one in S3", is_event("uploaded", newest + 10))
    output = stopped(process)
    begun = events(room, "attempt-started")
    assert begun[-1].data["resumed_from"] == newest
    assert f"fetching step-{newest}" in output
    lost = max(r.step for r in room.records()) > newest
    assert lost
    # Uploads left nothing half there: all that the store shows is whole, and retention holds.
    import s3fs

    system = s3fs.S3FileSystem(use_listings_cache=False)
    places = system.ls("bucket/runs/drill", detail=False)
    steps = [place for place in places if not place.endswith("/book")]
    assert len(steps) == len(places) - 1
    assert all(system.exists(f"{place}/manifest.json") for place in steps[:2])
    assert len(steps) <= 4


@pytest.mark.slow
def test_a_run_that_is_wholly_lost_comes_back_from_s3_with_what_was_decided(
    room, bucket: str
) -> None:
    remote = ("--set", f"checkpoint.remote='{bucket}'")
    more = ("--set", "machine.processes=2", "--set", "checkpoint.snapshot_interval_steps=0",
            "--set", "checkpoint.remote_keep_last=1000")  # fmt: skip
    process = room.start("train", "drill", *OPTIONS, *remote, *more)
    room.wait_for("a checkpoint", is_event("uploaded", 10))
    ask(room, "set", path="optim.lr", value=1e-5)
    decided = room.wait_for("a decision", lambda r: isinstance(r, Decision) and r.kind == "set")
    room.wait_for("a checkpoint after that", is_event("uploaded", decided.step + 1))
    room.kill(process)
    lost = room.records()
    shutil.rmtree(room.runs)

    process = room.start("train", "drill", *remote)
    room.wait_for("the book", is_event("brought-back"))
    again = is_event("attempt-started")
    begun = room.wait_for("the next attempt", lambda r: again(r) and r.attempt > 1)
    assert begun.data["resumed_from"] > decided.step
    assert begun.data["live"]["matrix.lr"] == 1e-5
    # Two ranks: one of them fetches what only the bucket has, both go back.
    room.wait_for("more steps", lambda r: isinstance(r, StepRecord) and r.attempt > 1)
    ask(room, "rollback", to=decided.step)
    to = room.wait_for("a rollback", is_event("rolled-back")).data["to"]
    stopped(process)
    assert 10 <= to <= decided.step
    assert [e.step for e in events(room, "fetched")] == [begun.data["resumed_from"], to]
    made = [r for r in room.records() if isinstance(r, StepRecord) and r.attempt == 1]
    assert made == [r for r in lost if isinstance(r, StepRecord)][: len(made)] != []
    reasons = [segment.reason for segment in read_segments(room.folder())]
    assert reasons[:2] == ["start", "asked"], "the old tree"
    assert "the last attempt left no word" in reasons[2]


def test_a_store_that_is_away_costs_nothing_but_time(room, tmp_path: Path) -> None:
    place = tmp_path / "remote"
    place.write_text("a file where a folder should be")
    remote = ("--set", f"checkpoint.remote='{place}'", "--set", "checkpoint.remote_keep_last=50")
    process = room.start("train", "drill", "--new", *OPTIONS, *remote)
    away = room.wait_for("word that the store is away", is_event("store-away"))
    assert "it stays here and is sent later, in order" in away.data["message"]
    room.wait_for("saves to go on", lambda r: r.step >= away.step + 30)
    place.unlink()
    room.wait_for("the store's return", is_event("store-back"))
    room.wait_for("what was held back", is_event("uploaded", away.step + 20))
    output = stopped(process)
    # The run log goes first; whether it is due before the first checkpoint is a matter of moments.
    first = ("WARNING: step-10 is not in", "WARNING: the run's log is not in")
    assert any(words in output for words in first), output
    sent = [e.step for e in events(room, "uploaded")]
    assert sent == sorted(sent)
    assert sent[:3] == [10, 20, 30], "local retention had to wait for them"


def test_a_run_does_not_begin_anew_while_its_store_is_away(room, tmp_path: Path) -> None:
    place = tmp_path / "remote"
    remote = ("--set", f"checkpoint.remote='{place}'")
    process = room.start("train", "drill", *OPTIONS, *remote)
    room.wait_for("a checkpoint elsewhere", is_event("uploaded", 10))
    stopped(process)
    shutil.rmtree(room.folder().checkpoints)
    kept = tmp_path / "kept"
    place.rename(kept)
    place.write_text("away")
    code, output = room.run("train", "drill", *remote)
    assert code == 16, output
    assert "no checkpoint is here" in output
    place.unlink()
    kept.rename(place)
    process = room.start("train", "drill", *remote)
    fetched = room.wait_for("a checkpoint from there", is_event("fetched"))
    now = fetched.attempt
    step = room.wait_for("a step", lambda r: isinstance(r, StepRecord) and r.attempt == now)
    stopped(process)
    (started,) = [e for e in events(room, "attempt-started") if e.attempt == now]
    assert started.data["resumed_from"] == fetched.step == step.step - 1 >= 10


def test_a_finished_run_has_its_last_checkpoint_elsewhere(room, tmp_path: Path) -> None:
    place = tmp_path / "remote"
    code, output = room.run(
        "train", "drill", "--set", "train.steps=12", "--set", "optim.schedule.warmup_steps=2",
        "--set", f"checkpoint.remote='{place}'", "--set", "checkpoint.interval_steps='auto'",
    )  # fmt: skip
    assert code == 0, output
    (interval,) = events(room, "save-interval")
    assert interval.data["reason"] == "no save has been timed yet"
    assert sorted(p.name[:8] for p in (place / "drill").iterdir()) == ["book", "step-12-"]
    assert events(room, "uploaded")[-1].step == 12
    assert [p.name for p in room.folder().checkpoints.iterdir()] == ["step-12"]


@pytest.mark.slow
def test_a_full_disk_makes_room_then_pauses_and_goes_on_by_itself(room, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "longhaul-test", str(small)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        room.runs.symlink_to(small)
        process = room.start("train", "drill", *OPTIONS, "--set", "checkpoint.keep_last=1000",
                             "--set", "checkpoint.interval_steps=5")  # fmt: skip
        made = room.wait_for("an older checkpoint that gives way", is_event("room-made"))
        room.wait_for("the save it gave way for", is_event("checkpoint", made.step + 5))
        assert not events(room, "checkpoint-failed")
        ballast = small / "ballast"
        deadline = time.monotonic() + DEADLINE_S
        while not events(room, "paused"):
            assert time.monotonic() < deadline, "it never paused"
            # Whatever gives way is taken again; a save may take some of it first.
            with suppress(OSError), ballast.open("ab") as file:
                free = shutil.disk_usage(small).free
                if free > 1 << 20:
                    os.posix_fallocate(file.fileno(), file.tell(), free - (1 << 19))
            time.sleep(0.05)
        paused = events(room, "paused")[0]
        ballast.unlink()
        room.wait_for("training to go on", lambda r: r.step >= paused.step + 20)
        output = stopped(process)
        assert f"PAUSED at step {paused.step}: the disk of " in output
        assert "training then goes on by itself" in output
        (resumed,) = events(room, "resumed")
        assert resumed.step == paused.step, "no step was made meanwhile"
        steps = [r.step for r in room.records() if isinstance(r, StepRecord)]
        assert steps == list(range(1, steps[-1] + 1)), "the journal lost no step"
    finally:
        for started in room.processes:
            started.kill()
            started.wait()
        subprocess.run(["umount", "-l", str(small)], check=False)
