"""The parts of a job whose nodes run their own ranks, as on Kubernetes: two, with real runs."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launches import cluster_of, spec_of
from longhaul.config.load import load_recipe
from longhaul.core.records import StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.run.launch.launch import recipe_text

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two nodes of a JobSet, each with the environment that its pod would have."""
    options = ("train.steps=100000", "evaluation.interval_steps=1000")
    text = recipe_text(load_recipe("drill", options))
    cluster = cluster_of(
        "k8s", image="i", runs=str(tmp_path / "runs"), prepared=str(tmp_path / "prepared")
    )
    spec = spec_of(cluster, run="drill", recipe=text, qualify=False, preflight=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        begun = []
        for rank in range(2):
            environment = {
                **os.environ, "LONGHAUL_LAUNCH": spec.to_json(), "JOB_COMPLETION_INDEX": str(rank),
                "NNODES": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            log = stack.enter_context((tmp_path / f"{rank}.log").open("wb"))
            words = [sys.executable, "-m", "longhaul", "launched"]
            begun.append(
                subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=tmp_path)
            )
        try:
            yield begun
        finally:
            for process in begun:
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(60)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()


def test_two_nodes_train_one_run_and_a_notice_to_one_ends_both_with_16(nodes, tmp_path) -> None:
    run, deadline = RunFolder(tmp_path / "runs" / "drill"), time.monotonic() + 120

    def steps() -> list[int]:
        if not run.journal.exists():
            return []
        return [r.step for r in read_journal(run) if isinstance(r, StepRecord)]

    def logs() -> str:
        return "\n".join((tmp_path / f"{rank}.log").read_text() for rank in range(2))

    while max(steps(), default=0) < 10:
        assert time.monotonic() < deadline, logs()
        assert [node.poll() for node in nodes] == [None, None], logs()
        time.sleep(0.2)
    nodes[1].send_signal(signal.SIGTERM)
    assert [node.wait(60) for node in nodes] == [16, 16], logs()
    assert "saved at step" in logs()
