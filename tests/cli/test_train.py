"""`longhaul train` and `longhaul worker` start whatever their caller has closed."""

import subprocess
import sys
from pathlib import Path

from longhaul.core.clocks import RealClock
from longhaul.logbook.folder import create_run

_STARTED = """
import os, sys
from longhaul.cli.train import open_standard_files

open_standard_files()
print("to nobody", flush=True)
print("to nobody", flush=True, file=sys.stderr)
sys.exit(0 if sys.stdin.read() == "" and min(os.pipe()) > 2 else 1)
"""


_WORKER = """
import sys, types
sys.modules["torch"] = types.ModuleType("torch")  # there once a run was trained; its end differs
import longhaul.run.train.worker
longhaul.run.train.worker.enter = lambda folder, view: 0
sys.argv = ["longhaul", "worker", sys.argv[1]]
from longhaul.cli.entry import main
main()
"""
_CLOSING = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]


def test_closed_standard_files_are_opened_so_that_no_pipe_takes_their_numbers() -> None:
    done = subprocess.run([*_CLOSING, sys.executable, "-c", _STARTED], check=False)
    assert done.returncode == 0


def test_a_worker_with_closed_standard_files_ends_well(tmp_path: Path) -> None:
    run = create_run(tmp_path / "run", RealClock())
    command = [sys.executable, "-c", _WORKER, str(run.path)]
    assert subprocess.run([*_CLOSING, *command], check=False).returncode == 0
