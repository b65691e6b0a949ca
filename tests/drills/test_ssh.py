"""A launch by plain SSH, over a real sshd on this machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from drills.slurm import wait_for
from longhaul.core.events import EventKind
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.supervise.nodes.ledger import NodeEvent, append

_MISSING = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=(
    os.environ.get("PATH", "") + ":/usr/sbin")) is None]  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_MISSING), reason=f"{', '.join(_MISSING)} not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd lets others in for root alone"),
]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Three names of this machine by an sshd of its own; the environment that knows them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / key],
                       check=True)  # fmt: skip
    Path("/run/sshd").mkdir(exist_ok=True)
    (tmp_path / "ssh.conf").write_text(
        f"Host one two three\n  HostName 127.0.0.1\n  Port {port}\n  User root\n"
        f"  IdentityFile {tmp_path}/user\n  StrictHostKeyChecking no\n"
        "  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "ssh").write_text(
        f'#!/bin/sh\nexec {shutil.which("ssh")} -F {tmp_path}/ssh.conf "$@"\n'
    )
    (binaries / "ssh").chmod(0o755)
    path = f"{binaries}:{os.environ['PATH']}"
    # Of several lines with SetEnv only the first counts.
    variables = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')} PATH={path}"
    (tmp_path / "sshd.conf").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nPermitRootLogin yes\nUsePAM no\n"
        f"PidFile none\nSetEnv {variables}\n"
    )
    program = shutil.which("sshd", path=f"{path}:/usr/sbin")
    with (tmp_path / "sshd.log").open("w") as log:
        server = subprocess.Popen([program, "-D", "-e", "-f", tmp_path / "sshd.conf"], stderr=log)
    try:
        yield {**os.environ, "PATH": path}
    finally:
        server.terminate()
        server.wait(20)


def test_a_run_trains_on_hosts_and_goes_on_without_one(hosts, tmp_path) -> None:
    def ready() -> bool:
        return subprocess.run(["ssh", "one", "true"], env=hosts, check=False).returncode == 0

    wait_for("an sshd that answers", ready, 20)
    (tmp_path / "clusters.toml").write_text(
        f'[cluster.lab]\nscheduler = "ssh"\nruns = "{tmp_path}/runs"\nworkdir = "{tmp_path}"\n'
        f'python = "{sys.executable}"\nhosts = ["one", "two", "three"]\nnodes = 2\nspares = 1\n'
        f'node_ledger = "{tmp_path}/nodes"\nenvironment = {{ GLOO_SOCKET_IFNAME = "lo" }}\n'
    )
    append(tmp_path / "nodes", NodeEvent(kind="cordoned", parts=("host:two",), host="two",
                                         time=time.time(), reason="hot"))  # fmt: skip
    launch = ["launch", "drill", "--on", "ssh", "--no-qualify", "--no-preflight", "--nodes", "2",
              "--set", "train.steps=30", "--set", "evaluation.interval_steps=1000"]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "longhaul", *launch], env=hosts, cwd=tmp_path,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "launches").iterdir()
    log = folder / "job.log"
    wait_for("the job's end", lambda: log.exists() and "part ended with" in log.read_text(), 60)
    assert "the job's part ended with 0" in log.read_text(), log.read_text()
    run = RunFolder(tmp_path / "runs" / "drill")
    events = [r for r in read_journal(run, steps=False) if isinstance(r, Event)]
    (began,) = [event for event in events if event.kind == EventKind.ATTEMPT_BEGAN]
    assert [node["name"] for node in began.data["nodes"]] == ["one", "three"]
