"""Whatever ends the tests ends what they have started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from guard import MARK

_TESTS = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whoever runs these tests may have it ignored
sys.path.insert(0, sys.argv[1])
from guard import start_guard

start_guard()
trainer = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                           start_new_session=True)
print(trainer.pid, flush=True)
time.sleep(600)
"""


def test_whatever_a_test_starts_is_marked_for_the_guard() -> None:
    code = f"import os; print(os.environ.get({MARK!r}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == os.environ.get(MARK, "no guard was started")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_does_not_outlive_tests_that_are_ended(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _TESTS, str(Path(__file__).parent)],
        stdout=subprocess.PIPE, text=True,
    ) as tests:  # fmt: skip
        assert tests.stdout is not None
        trainer = psutil.Process(int(tests.stdout.readline()))
        assert alive(trainer)
        tests.send_signal(number)
    deadline = time.monotonic() + 60
    while alive(trainer):
        assert time.monotonic() < deadline, "the trainer lives on"
        time.sleep(0.05)


def alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
