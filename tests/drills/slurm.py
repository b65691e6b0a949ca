"""A real Slurm of three nodes on this machine: its own folder, ports, munge, and processes.

Every node is a `slurmd -N` in a namespace of processes, and of its host name, of its own: killing
its first process ends all that runs there at once, as the end of a machine does.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

NODES = ("lh1", "lh2", "lh3")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "unshare")
_CONF = """\
ClusterName=drill
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
JobRequeue=1
ReturnToService=2
# Seconds: a drill waits for these, a real cluster has minutes.
SlurmdTimeout=6
KillWait=10
OverTimeLimit=0
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why no Slurm can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "slurmd and munged are started by root alone"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_path()) is None]
    if missing:
        return f"{', '.join(missing)} not installed (make slurm-drills installs them)"
    alone = ["unshare", "--pid", "--uts", "--fork", "true"]
    if subprocess.run(alone, check=False, capture_output=True).returncode != 0:
        return "this system makes no namespaces of processes and host names"
    return ""


def wait_for(what: str, there: Callable[[], object], within_s: float = 60.0) -> None:
    """Wait until `there` tells; else fail, saying what did not come."""
    deadline = time.monotonic() + within_s
    while not there():
        if time.monotonic() > deadline:
            raise AssertionError(f"within {within_s:.0f} s there was not: {what}")
        time.sleep(0.2)


class SlurmCluster:
    """It runs between `start` and `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{n: v for n, v in os.environ.items() if not n.startswith("SLURM_")},
            "SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path(),
        }  # fmt: skip
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all of it, and wait until every node is idle."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "state").mkdir(exist_ok=True)
        host, first, *ports = socket.gethostname(), *_free_ports(len(NODES) + 1)
        nodes = [
            f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=4"
            for name, port in zip(NODES, ports, strict=True)
        ]
        (self.folder / "slurm.conf").write_text(
            _CONF.format(host=host, port=first, folder=self.folder, nodes="\n".join(nodes),
                         names=",".join(NODES))
        )  # fmt: skip
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        munge = {"key-file": key, "socket": self.folder / "munge.socket",
                 "pid-file": self.folder / "munge.pid", "log-file": self.folder / "munge.log",
                 "seed-file": self.folder / "munge.seed"}  # fmt: skip
        self._begin("munged", ["munged", "--foreground", "--force", "--num-threads=2",
                               *(f"--{name}={path}" for name, path in munge.items())])  # fmt: skip
        wait_for("munge's socket", (self.folder / "munge.socket").exists, 20)
        self._begin("slurmctld", ["slurmctld", "-D"])
        for name in NODES:
            (self.folder / f"spool-{name}").mkdir(exist_ok=True)
            self.start_node(name)
        wait_for("three idle nodes", lambda: self.states() == dict.fromkeys(NODES, "idle"), 60)

    def start_node(self, name: str) -> None:
        """Start a node's daemon."""
        # A node is known by its machine-id where it has no board or GPU of its own.
        identity = self.folder / f"machine-id-{name}"
        if not identity.exists():
            identity.write_text(secrets.token_hex(16) + "\n")
        alone = ["unshare", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
        own = f"mount --bind {identity} /etc/machine-id && hostname {name}"
        daemon = f"{own} && exec slurmd -D -N {name}"
        self._begin(name, [*alone, "sh", "-c", daemon])

    def kill_node(self, name: str) -> None:
        """End a node and all that runs on it, at once."""
        process = self._processes.pop(name)
        process.kill()  # by --kill-child the namespace's first process goes with it
        process.wait()

    def alive(self, name: str) -> bool:
        """Whether a node's daemon runs."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def states(self) -> dict[str, str]:
        """Node → state, as `sinfo` says it."""
        printed = self.run("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
        return dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)

    def run(self, *words: str, check: bool = True, cwd: Path | None = None) -> str:
        """Run a command in its environment."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, check=False, timeout=120,
            cwd=cwd,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def longhaul(self, *words: str, cwd: Path) -> str:
        """Run a longhaul command."""
        return self.run(sys.executable, "-m", "longhaul", *words, cwd=cwd)

    def job(self, number: str) -> dict[str, str]:
        """A job's fields; nothing once Slurm has forgotten it."""
        shown = self.run("scontrol", "--oneliner", "show", "job", number, check=False)
        return dict(re.findall(r"(?:^|\s)([A-Za-z][\w:/]*)=(\S*)", shown))

    def stop(self) -> None:
        """End all of it."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--user=root", check=False)
            wait_for(
                "an empty queue", lambda: not self.run("squeue", "--noheader", check=False), 30
            )
        for name in reversed(list(self._processes)):
            process = self._processes[name]
            process.send_signal(signal.SIGKILL if name in NODES else signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _begin(self, name: str, words: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
