"""`longhaul sample` streams into a pipe, and ends well when the reader leaves or says so."""

import os
import signal
from pathlib import Path

import pytest

from fork_server import SERVER, Process
from longhaul.core.errors import ExitCode


@pytest.fixture
def sampling(honest: Path):
    """The command, writing the likeliest tokens without end."""
    started: list[Process] = []

    def start() -> Process:
        command = ["-m", "longhaul", "sample", "drill", "--temperature", "0", "--prompt", "abc",
                   "--tokens", "10000000", "--runs-dir", str(honest.parent)]  # fmt: skip
        started.append(SERVER.start(command, Path.cwd(), os.environ))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_text_comes_while_it_is_written_and_an_interrupt_ends_it(sampling) -> None:
    process = sampling()
    assert process.stdout.read(10).startswith("abc")
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.wait(60) == ExitCode.INTERRUPTED
    assert rest.endswith("longhaul: interrupted\n")
    assert "Traceback" not in rest


def test_a_reader_that_leaves_is_nothing_wrong(sampling) -> None:
    process = sampling()
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == ExitCode.FINISHED
