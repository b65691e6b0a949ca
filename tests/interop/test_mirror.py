"""How far a mirror has come, and whose it is."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest

from longhaul.core.errors import UsageError
from longhaul.interop.trackers.mirror import Mirror, Process, TakenOver, Target
from longhaul.interop.trackers.series import TokenCount
from longhaul.logbook.holder import here, process_started


class Kept(Target):
    """Keeps the steps it was shown."""

    def __init__(self):
        self.records = []
        self.breaks = 0

    def take(self, record):
        self.records.append(record)
        if self.breaks:
            self.breaks -= 1
            raise OSError(5, "Input/output error", "/a/path")

    def state(self):
        return {"count": len(self.records)}

    def restore(self, state):
        del self.records[state.get("count", 0) :]


@pytest.fixture
def path(run):
    return run.folder.trackers / "kept.json"


def test_what_fails_is_told_once_and_comes_again_from_where_it_was_noted(run, path):
    said, target = [], Kept()
    run.begin(0)
    run.steps(3)
    mirror = Mirror(run.folder, target, path, said.append)
    mirror.look()
    run.steps(3)
    for _ in range(3):
        target.breaks = 1
        assert not mirror.look()
    assert mirror.look()
    assert [r.step for r in target.records] == [0, 1, 2, 3, 4, 5, 6]
    assert len(said) == 2
    assert "/a/path" in said[0]


def test_a_folder_that_is_away_for_a_while_costs_nothing(run, path):
    said, target = [], Kept()
    run.begin(0)
    run.steps(1)
    mirror = Mirror(run.folder, target, path, said.append)
    mirror.look()
    away = run.folder.path.with_name("away")
    run.folder.path.rename(away)
    assert not mirror.look()
    assert not run.folder.path.exists(), "nothing is made anew there"
    away.rename(run.folder.path)
    run.steps(1)
    mirror.look()
    assert [r.step for r in target.records] == [0, 1, 2]


def test_two_never_mirror_a_run_to_the_same_place(run, path):
    mirror = Mirror(run.folder, Kept(), path, print)
    run.begin(0)
    other = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    body = json.loads(path.read_text())
    body["by"] = asdict(Process(other.pid, process_started(other.pid), here()))
    path.write_text(json.dumps(body))
    with pytest.raises(TakenOver, match=str(other.pid)):
        mirror.look()
    with pytest.raises(UsageError, match=f"process {other.pid} mirrors it"):
        Mirror(run.folder, Kept(), path, print)
    other.communicate(b"\n")
    Mirror(run.folder, Kept(), path, print).look()
    assert json.loads(path.read_text())["by"]["pid"] == os.getpid()


def test_tokens_of_the_present_weights():
    count, made = TokenCount(), {}
    for first, last, tokens in ((1, 5, 10), (6, 9, 20), (4, 7, 20), (8, 8, 10), (2, 3, 7)):
        for step in range(first, last + 1):
            count.add(step, tokens)
            made = {k: v for k, v in made.items() if k < step} | {step: tokens}
            assert count.at(step) == sum(made.values())
    assert len(count.runs) <= 3
