"""Ends what tests have started, whatever ends the tests.

Trainers are started in sessions of their own and outlive a pytest that is killed before its
fixtures can end them. All that a test starts inherits a mark in its environment; a small process
waits for pytest's death and then ends whatever carries the mark.
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

MARK = "LONGHAUL_TESTS"
_BETWEEN_S = 0.1


def start_guard() -> Callable[[], None]:
    """Mark this process's children, and have them ended once it is gone.

    Returns:
        ends them now.
    """
    mark = secrets.token_hex(8)
    guard = subprocess.Popen(
        [sys.executable, __file__, mark], stdin=subprocess.PIPE, start_new_session=True
    )
    os.environ[MARK] = mark

    def end() -> None:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()

    return end


def _end_all(mark: str) -> None:
    """Until there are none: a process that is being ended may have started another one."""
    while killed := [process for process in psutil.process_iter() if _is_marked(process, mark)]:
        for process in killed:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(_BETWEEN_S)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error):
        alive = process.status() != psutil.STATUS_ZOMBIE
        return alive and process.environ().get(MARK) == mark
    return False


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until whoever started it is gone
    _end_all(sys.argv[1])
