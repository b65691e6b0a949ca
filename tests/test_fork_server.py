"""What is forked passes for a fresh interpreter with those who look at it."""

import os
from pathlib import Path

from fork_server import SERVER
from longhaul.supervise.leftovers import MARK, processes_with


def test_a_forked_process_shows_its_own_environment(tmp_path: Path) -> None:
    """A drill looks for what it has left by a mark there, and must not overlook it."""
    (tmp_path / "waits.py").write_text("print('here', flush=True)\nimport time\ntime.sleep(600)\n")
    process = SERVER.start(["waits.py"], tmp_path, os.environ | {MARK: "of this test"})
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert [found.pid for found in processes_with("of this test")] == [process.pid]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert processes_with("of this test") == []


def test_a_forked_process_imports_from_where_its_environment_says(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/only_there.py").write_text("print('found', __name__)")
    env = os.environ | {"PYTHONPATH": str(tmp_path / "elsewhere")}
    with (tmp_path / "said").open("w") as sink:
        process = SERVER.start(["-m", "only_there"], tmp_path, env, sink)
    assert process.wait(60) == 0
    assert process.stdout is None
    assert (tmp_path / "said").read_text() == "found __main__\n"
