import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from longhaul.core.clocks import FakeClock
from longhaul.logbook.folder import create_run
from longhaul.supervise.fence import fence, left_over, write_down


def test_what_is_left_is_ended_and_nobody_else(tmp_path: Path) -> None:
    folder = create_run(tmp_path / "run", FakeClock())
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with subprocess.Popen(sleeps, start_new_session=True) as left:
        write_down(folder, 4, [(0, left.pid), (1, os.getpid())])
        body = json.loads((folder.workers / "started.json").read_text())
        body["workers"][1]["started"] = "another process of that number"
        (folder.workers / "started.json").write_text(json.dumps(body))
        assert [worker.pid for worker in left_over(folder)] == [left.pid]
        said: list[str] = []
        fence(folder, 0.1, said.append)
        assert left.wait(10) == -signal.SIGKILL
    assert not left_over(folder)
    assert any(f"process {left.pid}, did not end" in line for line in said)


def test_processes_of_another_machine_are_never_touched(tmp_path: Path) -> None:
    folder = create_run(tmp_path / "run", FakeClock())
    write_down(folder, 1, [(0, os.getpid())])
    assert left_over(folder)
    body = json.loads((folder.workers / "started.json").read_text())
    body["place"]["boot_id"] = "another boot"
    (folder.workers / "started.json").write_text(json.dumps(body))
    assert not left_over(folder)


def test_damaged_notes_name_nobody(tmp_path: Path) -> None:
    folder = create_run(tmp_path / "run", FakeClock())
    assert not left_over(folder)
    (folder.workers / "started.json").write_text('{"place": 3}')
    assert not left_over(folder)
