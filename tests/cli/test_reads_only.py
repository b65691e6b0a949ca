"""Reading a run executes nothing: not what its recipe names, nor what lies in its folder."""

import json
import pickle
import shutil
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys, traceback

seen = []
FORBIDDEN = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork",
             "os.forkpty", "pty.spawn", "socket.connect", "socket.sendto", "socket.getaddrinfo",
             "pickle.find_class")

def watch(event, given):
    if event in FORBIDDEN:
        frames = [f"{f.filename}:{f.lineno}" for f in traceback.extract_stack()[:-1]]
        seen.append([event, repr(given)[:200], frames[-4:]])

from longhaul.cli.entry import application
import torch, duckdb, rich.table  # noqa: what installed packages do as they are imported is theirs
sys.addaudithook(watch)
for arguments in json.loads(sys.argv[1]):
    application()(arguments, standalone_mode=False)
folder = sys.argv[2]
named = [n for n, m in list(sys.modules.items()) if folder in str(getattr(m, "__file__", ""))]
print("SEEN", json.dumps([seen, named]))
"""


class Bait:
    def __reduce__(self):
        return (open, ("/tmp/must-not-be-opened", "w"))


@pytest.fixture
def baited(honest, tmp_path):
    """A run with everything in it that a careless reader would run, import, load or ask."""
    folder = tmp_path / "runs" / "drill"
    shutil.copytree(honest, folder)
    touched = tmp_path / "touched"
    script = f"open({str(touched)!r}, 'w')"
    for name in ("torch", "longhaul", "sitecustomize", "conftest", "usercustomize"):
        (folder / f"{name}.py").write_text(script)
    for name in ("meta.pkl", "checkpoints/.metadata", "journal/000001.pilot.pkl"):
        (folder / name).write_bytes(pickle.dumps(Bait()))
    settings = {
        "replace_command": f"touch {touched}",
        "node": [{"name": "a", "command": ["touch", str(touched)]}],
    }
    for name in ("asked.json", "segments/1.00/settings.json"):
        body = json.loads((folder / name).read_bytes())
        values = body["values" if name == "asked.json" else "settings"]
        values.setdefault("supervise", {}).update(settings)
        values.setdefault("checkpoint", {})["remote"] = ["http://127.0.0.1:9/place"]
        values["data"]["sources"] = [{"path": "http://127.0.0.1:9/text.jsonl"}]
        (folder / name).write_text(json.dumps(body))
    return folder, touched


def test_reading_a_run_starts_nothing_loads_no_code_and_asks_no_host(baited):
    folder, touched = baited
    commands = [
        [*words, "--runs-dir", str(folder.parent)]
        for words in (
            ["runs"], ["log", "drill"], ["tree", "drill"], ["diff", "drill"], ["report", "drill"],
            ["nodes", "drill"], ["replay", "drill"], ["sample", "drill", "--tokens", "2"],
            ["eval", "drill"],
        )
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, json.dumps(commands), str(folder)],
        capture_output=True, text=True, check=False, cwd=folder, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen, named = json.loads(done.stdout.rpartition("SEEN ")[2])
    assert seen == []
    assert named == []
    assert not touched.exists()
