"""`longhaul train` starts whatever its caller has closed."""

import subprocess
import sys

_STARTED = """
import os, sys
from longhaul.cli.train import _open_standard_files

_open_standard_files()
print("to nobody", flush=True)
print("to nobody", flush=True, file=sys.stderr)
sys.exit(0 if sys.stdin.read() == "" and min(os.pipe()) > 2 else 1)
"""


def test_closed_standard_files_are_opened_so_that_no_pipe_takes_their_numbers() -> None:
    closing = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    done = subprocess.run([*closing, sys.executable, "-c", _STARTED], check=False)
    assert done.returncode == 0
