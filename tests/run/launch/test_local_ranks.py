"""The ranks of one node."""

import os
import signal
import sys
import threading
import time

import pytest

from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.run.launch import local_ranks
from longhaul.run.launch.local_ranks import NodePlace, node_place, run_ranks


def test_each_scheduler_says_which_node_this_is() -> None:
    sky = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n"}
    assert node_place(sky) == NodePlace(1, 2, "10.0.0.1")
    kubeflow = {"PET_NODE_RANK": "2", "PET_NNODES": "3", "MASTER_ADDR": "m", "MASTER_PORT": "23456",
                "RANK": "2", "WORLD_SIZE": "3"}  # fmt: skip
    assert node_place(kubeflow) == NodePlace(2, 3, "m", "23456")
    jobset = {"JOB_COMPLETION_INDEX": "0", "NNODES": "4", "MASTER_ADDR": "m"}
    assert node_place(jobset) == NodePlace(0, 4, "m")
    for wrong in ({}, {"SKYPILOT_NODE_RANK": "0"}, jobset | {"NNODES": "four"}):
        with pytest.raises(NeedsPerson, match="which node of the job"):
            node_place(wrong)


def ranks(script: str, nodes: int = 2, workers: int = 2) -> ExitCode:
    return run_ranks([sys.executable, "-c", script], NodePlace(1, nodes, "m", "7"), workers)


def test_every_rank_gets_torchruns_environment(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    script = (
        f"import os; words = ' '.join(os.environ.get(n, '-') for n in {names!r})\n"
        f"open('{tmp_path}/' + os.environ.get('LOCAL_RANK', 'alone'), 'w').write(words)"
    )
    assert ranks(script) == ExitCode.FINISHED
    assert (tmp_path / "0").read_text() == "2 4 0 2 m 7"
    assert (tmp_path / "1").read_text() == "3 4 1 2 m 7"
    run_ranks([sys.executable, "-c", script], NodePlace(0, 1, "m"), 1)
    assert (tmp_path / "alone").read_text() == "- - - - - -", "one rank makes no process group"


@pytest.mark.parametrize(
    ("codes", "code"),
    [((16, 17), 17), ((0, 2), 2), ((16, 0), 16), ((5, 0), 1), ((16, 1), 16), ((0, 0), 0)],
)
def test_the_code_that_weighs_most_counts(codes, code) -> None:
    script = f"import os, sys; sys.exit({codes!r}[int(os.environ['LOCAL_RANK'])])"
    assert ranks(script) == code


def test_others_are_ended_when_one_has_failed_and_they_do_not(monkeypatch) -> None:
    monkeypatch.setattr(local_ranks, "_GRACE_S", 0.3)
    script = (
        "import os, sys, time\nif os.environ['LOCAL_RANK'] == '0': sys.exit(17)\ntime.sleep(60)"
    )
    began = time.monotonic()
    assert ranks(script) == ExitCode.NEEDS_PERSON
    assert time.monotonic() - began < 20


def test_a_notice_reaches_every_rank(tmp_path) -> None:
    script = (
        "import os, pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(16))\n"
        f"pathlib.Path('{tmp_path}', os.environ['LOCAL_RANK']).touch()\n"
        "time.sleep(60)"
    )

    def notify() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Thread(target=notify, daemon=True).start()
    assert ranks(script) == ExitCode.START_AGAIN
