import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.logbook.folder import create_run
from longhaul.supervise.ownership import fence, left_over, write_down


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
        fence(folder, 0.1, said.append, lambda: None)
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


class Held(Exception):
    """Somebody trains the run."""


@pytest.mark.parametrize("stopped_until", ["before it looks who is left", "while it waits"])
def test_a_start_that_stood_still_kills_no_worker_of_a_newer_attempt(
    tmp_path: Path, monkeypatch, stopped_until: str
) -> None:
    """Meanwhile somebody else has fenced the old workers, taken the run, and started new ones."""
    folder = create_run(tmp_path / "run", FakeClock())
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with (
        subprocess.Popen(sleeps, start_new_session=True) as old,
        subprocess.Popen(sleeps, start_new_session=True) as new,
    ):
        held: list[bool] = []

        def somebody_else_takes_over() -> None:
            write_down(folder, 5, [(0, new.pid)])
            held.append(True)

        def refuse_if_held() -> None:
            if held:
                raise Held

        try:
            write_down(folder, 4, [(0, old.pid)])
            if stopped_until == "while it waits":
                monkeypatch.setattr(
                    "longhaul.supervise.ownership.time.sleep", lambda _: somebody_else_takes_over()
                )
            else:
                somebody_else_takes_over()
            with pytest.raises(Held):
                fence(folder, 0.1, lambda text: None, refuse_if_held)
            assert new.poll() is None
        finally:
            old.kill()
            new.kill()
