"""What a person sees must never end a run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from longhaul.cli.progress import fitted

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


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(200, ()), (80, ("grad",)), (60, ("grad", "lr")), (48, ("grad", "lr", "tokens/s"))],
)
def test_a_narrow_terminal_shows_the_time_left_before_lesser_figures(width, left_out) -> None:
    line = "step    242/300  loss 0.9474  lr 1.95e-04  grad 1.91  13.8k tokens/s  ETA 2 h 10 min"
    shown = fitted(line, width)
    assert shown.startswith("step    242/300")
    assert shown.endswith("ETA 2 h 10 min")
    assert len(shown) <= width
    for figure in ("loss", "lr", "grad", "tokens/s"):
        assert (figure in shown) == (figure not in left_out)
