import subprocess
import sys
import time

from longhaul.core.clocks import process_start

SAY_START = "from longhaul.core.clocks import process_start; print(repr(process_start()))"


def test_a_process_knows_when_it_was_started_to_a_tick():
    before = time.time()
    said = subprocess.run([sys.executable, "-c", SAY_START], capture_output=True, check=True)
    assert before - 0.05 <= float(said.stdout) <= time.time()
    assert process_start() < before
