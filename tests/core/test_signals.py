import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from longhaul.core.errors import ExitCode
from longhaul.core.signals import (
    ignore_notices,
    leave_in_order_on_interrupt,
    leave_on_notices,
    leaving_at_once,
    listening,
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_schedulers_notice_becomes_a_wish_and_handlers_are_put_back(number) -> None:
    said: list[str] = []
    before = signal.getsignal(number)
    with listening(said.append) as stop_request:
        assert stop_request.exit_code is None
        os.kill(os.getpid(), number)
        assert stop_request.exit_code == ExitCode.START_AGAIN
    assert signal.getsignal(number) is before
    assert f"{number.name}: finishing this step and saving" in said[0]


def test_where_there_is_nothing_to_save_a_notice_ends_at_once() -> None:
    with pytest.raises(SystemExit) as left, leaving_at_once():
        os.kill(os.getpid(), signal.SIGUSR1)
    assert left.value.code == ExitCode.START_AGAIN


def test_a_first_interrupt_asks_for_130_and_says_what_a_second_one_does() -> None:
    said: list[str] = []
    with listening(said.append) as stop_request:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop_request.exit_code == ExitCode.INTERRUPTED
    assert "once more stops at once" in said[0]


def test_a_second_interrupt_says_that_nothing_is_saved_before_it_ends() -> None:
    reading_end, writing_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with listening(lambda text: os.write(writing_end, text.encode())):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)
    os.close(writing_end)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == ExitCode.INTERRUPTED
    assert b"what was done since the last save is lost" in os.read(reading_end, 4096)
    os.close(reading_end)


def test_a_second_interrupt_while_a_start_unwinds_ends_it_at_once() -> None:
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            leave_in_order_on_interrupt()
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)  # it was raised once more, into whatever unwinds
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == ExitCode.INTERRUPTED


@pytest.mark.parametrize(("orphaned", "why"), [(False, "preempted"), (True, "its supervisor died")])
def test_why_a_run_ends_is_told_apart_from_a_notice(orphaned: bool, why: str) -> None:
    with listening(lambda _: None, lambda: orphaned) as stop_request:
        assert not stop_request.reason
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop_request.reason == why


def test_once_the_exit_code_stands_no_notice_replaces_it() -> None:
    pid = os.fork()
    if pid == 0:
        leave_on_notices()
        ignore_notices()
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            os.kill(os.getpid(), number)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_command_that_still_imports_answers_a_notice() -> None:
    hit = "import os, signal, sys\nsys.argv = ['longhaul', 'train']\n" + (
        "class Hit:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGUSR1)\n"
        "sys.meta_path.insert(0, Hit())\n"
        "from longhaul.cli.entry import main\nmain()\n"
    )
    assert subprocess.run([sys.executable, "-c", hit], check=False).returncode == 16
