"""What a person sees must never end a run."""

import os
import subprocess
import sys
from pathlib import Path

_VIEW = """
import sys
from pathlib import Path
from longhaul.cli.progress import TerminalView

view = TerminalView(Path(sys.argv[1]))
view.begin(0, 10)
view.say("before")
sys.stdin.readline()
view.end()
view.say("saved")
"""


def test_a_terminal_that_is_closed_ends_nothing_and_the_log_stays_whole(tmp_path: Path) -> None:
    terminal, its_end = os.openpty()
    log = tmp_path / "0.log"
    with subprocess.Popen(
        [sys.executable, "-c", _VIEW, str(log)],
        stdin=subprocess.PIPE,
        stdout=its_end,
        stderr=subprocess.PIPE,
        env=os.environ | {"TERM": "xterm"},
    ) as process:
        os.close(its_end)
        seen = b""
        while b"before" not in seen:
            seen += os.read(terminal, 1024)
        os.close(terminal)
        _, said = process.communicate(b"\n")
    assert (process.returncode, said) == (0, b"")
    assert log.read_text() == "before\nsaved\n"
