"""`longhaul mirror` beside real runs, and a real supervisor with all that runs beside it."""

import json
import os
import signal
import socket
import urllib.request

import pytest

from longhaul.core.records import StepRecord
from longhaul.supervise.ownership import left_over

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
parser = pytest.importorskip("prometheus_client.parser")


def steps_shown(folder):
    reader = event_accumulator.EventAccumulator(str(folder), {"scalars": 0})
    reader.Reload()
    return {event.step: event.value for event in reader.Scalars("train/loss")}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_a_supervised_run_is_mirrored_measured_and_its_end_is_told(room, wait_until):
    port, told = free_port(), room.path / "told"
    command = json.dumps(["sh", "-c", f"cat >> {told}; echo >> {told}"])
    # So many that the mirror is there before the last.
    process = room.start(
        "train", "drill", "--set", "train.steps=250", "--set", "optim.schedule.warmup_steps=1",
        "--set", "machine.threads=1", "--set", 'monitor.trackers=["tensorboard"]',
        "--set", f"monitor.metrics_port={port}", "--set", f"alert.command={command}",
    )  # fmt: skip
    scraped: dict[str, float] = {}

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                text = answer.read().decode()
        except OSError:
            return False
        families = list(parser.text_string_to_metric_families(text))
        scraped.update({s.name: s.value for f in families for s in f.samples})
        return True

    wait_until("/metrics", answers)
    assert scraped["longhaul_run_info"] == 1
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "beside training" not in output, output
    wait_until("the word of its end", lambda: told.exists() and told.read_bytes().endswith(b"\n"))
    body = json.loads(told.read_text())
    assert (body["kind"], body["what"], body["severity"]) == ("end", "0", "notice")
    folder = room.folder()
    made = {r.step: r.loss for r in room.records() if isinstance(r, StepRecord)}
    wait_until(
        "the last step", lambda: max(steps_shown(folder.trackers / "tensorboard")) == max(made)
    )
    assert steps_shown(folder.trackers / "tensorboard") == pytest.approx(made)


def test_the_death_of_a_supervisor_is_told_whatever_its_workers_do(room, wait_until):
    """Such as hang: they do not hold what the hook listens to."""
    told = room.path / "told"
    command = json.dumps(["sh", "-c", f"cat >> {told}; echo >> {told}"])
    process = room.start(
        "train", "drill", "--set", "machine.threads=1", "--set", f"alert.command={command}"
    )
    room.wait_for("a step", lambda record: isinstance(record, StepRecord))
    alert = room.folder().trackers / "alert.json"
    wait_until("the hook", alert.exists)
    workers = left_over(room.folder())
    for worker in workers:
        os.kill(worker.pid, signal.SIGSTOP)
    os.kill(process.pid, signal.SIGKILL)
    wait_until("the word of it", lambda: told.exists() and told.read_bytes().endswith(b"\n"))
    assert json.loads(told.read_text())["what"] == "died"
    assert left_over(room.folder()) == workers


def test_what_cannot_be_mirrored_to_is_said_and_training_goes_on(room, monkeypatch):
    """Such as a package that is not installed, or a folder where the mirror should write."""
    (room.runs / "drill").mkdir(parents=True)
    (room.runs / "drill" / "trackers").write_text("in the way")
    code, output = room.run(
        "train", "drill", "--set", "train.steps=3", "--set", "optim.schedule.warmup_steps=1",
        "--set", "machine.threads=1", "--set", 'monitor.trackers=["tensorboard"]',
    )  # fmt: skip
    assert code == 0, output
    assert output.count("beside training: mirror to tensorboard") == 1, output
    assert "finished" in output
