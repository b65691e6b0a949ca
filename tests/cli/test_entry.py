"""How a command begins."""

import subprocess
import sys

_INTERRUPTED_BEFORE_ITS_COMMANDS_ARE_THERE = """
import os, signal
from longhaul.cli import entry
entry.application = lambda: os.kill(os.getpid(), signal.SIGINT)
entry.main()
"""


def test_an_interrupt_during_imports_ends_with_130_and_no_traceback() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_BEFORE_ITS_COMMANDS_ARE_THERE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.strip()) == (130, "longhaul: interrupted")
