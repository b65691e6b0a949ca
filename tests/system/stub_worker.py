"""Workers without torch, and their supervisor: `python stub_worker.py RUN`; `work RUN` is a worker.

A worker makes steps of some milliseconds, each of which waits for all other ranks, saves a number
now and then, and does in its first attempts what `plot.json` in the run's folder says.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import longhaul.supervise.nodes.fleet
import longhaul.supervise.nodes.health_monitor
import longhaul.supervise.nodes.qualify
from longhaul.cli.disturbed import inject_around
from longhaul.config.recover import SuperviseSection
from longhaul.core.clocks import RealClock
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.lease import acquire, refuse_if_held
from longhaul.parallel.layout import Layout
from longhaul.store.manifest import Manifest, write_listed_file, write_manifest
from longhaul.supervise.causes import load_signatures
from longhaul.supervise.failure_handler import Job
from longhaul.supervise.history import usable_checkpoints
from longhaul.supervise.nodes.placement import NodePlan
from longhaul.supervise.nodes.qualify import PROBE_WITHIN_S, Inquiry
from longhaul.supervise.ownership import fence, left_over
from longhaul.supervise.pipes import hold_on
from longhaul.supervise.ranks.progress import ProgressFile, progress_path, read_progress
from longhaul.supervise.ranks.stacks import answer_for_stacks
from longhaul.supervise.supervisor import Supervisor

STEPS = 40
SAVE_EVERY = 10
TOLD = ("LONGHAUL_NODE", "LONGHAUL_NODE_PARTS", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "WORLD_SIZE")  # fmt: skip
STEP_S = 0.02


def work(folder: RunFolder) -> int:
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    attempt = int(os.environ["LONGHAUL_ATTEMPT"])
    plot = json.loads((folder.path / "plot.json").read_text())
    (folder.path / f"pid-{rank}").write_text(str(os.getpid()))
    told = {name: os.environ[name] for name in TOLD if name in os.environ}
    (folder.path / f"told-{rank}.json").write_text(json.dumps(told))
    (folder.path / f"net-{rank}").write_text(str(Path("/proc/self/ns/net").readlink()))
    (folder.path / "device").write_text(plot.get("device", ""))
    stacks = answer_for_stacks(folder, rank)
    progress = ProgressFile(progress_path(folder, rank))
    hold_on(os.environ, plot.get("grace_s", 5.0), folder.workers / f"{rank}.log")
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    step = max(usable_checkpoints(folder), default=0)
    while step < plot.get("steps", STEPS):
        for act in plot.get("acts", ()):
            mine = act.get("rank", rank) == rank and act["step"] == step
            mine = mine and act.get("node") in (None, os.environ.get("LONGHAUL_NODE"))
            if mine and attempt <= act.get("attempts", 1):
                do(act["do"], folder)
        time.sleep(STEP_S)
        step += 1
        progress.enter("step", step)
        wait_for_others(folder, rank, size, step, asked)
        if rank == 0 and (asked or step % SAVE_EVERY == 0):
            save(folder, step)
        if asked and not plot.get("deaf"):
            return 130 if asked[0] == signal.SIGINT else 16
    stacks.close()
    return 0


def save(folder: RunFolder, step: int) -> None:
    path = folder.checkpoints / f"step-{step}"
    if not path.exists():
        path.mkdir(parents=True)
        state = write_listed_file(path / "state.json", [b"state"])
        write_manifest(path, Manifest(step=step, time=time.time(), files=(state,)))


def wait_for_others(folder: RunFolder, rank: int, size: int, step: int, asked: list[int]) -> None:
    for other in range(size):
        while other != rank and not asked:
            said = read_progress(progress_path(folder, other))
            if said is not None and said.step >= step:
                break
            time.sleep(0.005)


def do(what: str | dict, folder: RunFolder) -> None:
    if isinstance(what, dict):  # rank 0 says something about machines
        if os.environ["RANK"] == "0":
            journal = Journal(folder, int(os.environ["LONGHAUL_ATTEMPT"]))
            journal.append_durably(
                Event(
                    kind="machine-verdict",
                    attempt=int(os.environ["LONGHAUL_ATTEMPT"]),
                    time=time.time(),
                    data=what,
                )
            )
            journal.close()
            (folder.path / "verdict-told").touch()
        if what["kind"] == "corrupt":
            while not (folder.path / "verdict-told").exists():  # rank 0 lets them leave
                time.sleep(0.002)
            who = " or ".join(map(str, what["ranks"] or what["among"]))
            sys.stderr.write(f"SilentCorruption: rank {who} computes wrong numbers\n")
            sys.exit(1)
    elif what == "forget-node":
        path = folder.path / "gone" / os.environ["LONGHAUL_NODE"]
        path.parent.mkdir(exist_ok=True)
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    elif what.startswith("kernel "):
        line = {"monotonic": time.monotonic(), "node": os.environ["LONGHAUL_NODE"],
                "line": what.removeprefix("kernel ")}  # fmt: skip
        with (folder.path / "drill-kernel.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")
    elif what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif what == "loop":
        while True:
            time.sleep(0.01)
    elif what == "leave":  # as where a collective notices that a peer has gone
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:9")
    elif what == "leave-well":
        sys.exit(16)
    elif what == "part":  # as `parallel.control.RankLost` ends
        sys.stderr.write("longhaul: rank 0 of 3 waited for the others, and not all of them came\n")
        sys.exit(16)
    elif what == "raise":
        time.sleep(0.3)  # after the one who notices it
        raise ValueError("the culprit, at 0x7f00aa")
    elif what.startswith("CUDA error"):
        raise RuntimeError(what)
    else:
        sys.stderr.write(f"longhaul: {what} is wrong\n")
        sys.exit(int(what.removeprefix("exit ")))


def nodes_of(folder: RunFolder, settings: SuperviseSection, plot: dict) -> NodePlan | None:
    if not settings.node:
        return None
    slots = sum(node.slots for node in settings.node if not node.spare)
    shared = settings.node_ledger
    ledger = Path(shared) if shared else folder.path
    return NodePlan(settings, Layout(replicate=slots), 64, ledger)


def device_of(folder: RunFolder) -> str:
    """As a real run's first segment tells it, once its first attempt trains."""
    path = folder.path / "device"
    return path.read_text() if path.exists() else ""


def be_quick() -> None:
    """Probes without torch, and looks at other nodes more often than anybody needs."""
    if "STUB_PROBE" in os.environ:
        words = [sys.executable, os.environ["STUB_PROBE"]]
        for module in (longhaul.supervise.nodes.qualify, longhaul.supervise.nodes.fleet):
            module.start_probe = lambda command, folder, slots: Inquiry(
                [*command, *words], PROBE_WITHIN_S
            )
    if "STUB_CALL_EVERY_S" in os.environ:
        longhaul.supervise.nodes.health_monitor._CALL_EVERY_S = float(
            os.environ["STUB_CALL_EVERY_S"]
        )


def supervise(folder: RunFolder) -> int:
    be_quick()
    inject_around(folder)  # what a rank had the kernel say
    plot = json.loads((folder.path / "plot.json").read_text())
    settings = SuperviseSection.model_validate_json(json.dumps(plot["settings"]))

    def say(text: str) -> None:
        print(text, flush=True)

    if left_over(folder):
        fence(folder, settings.grace_s, say, lambda: refuse_if_held(folder, RealClock()))
    with acquire(folder, RealClock()).keep() as lease:
        job = Job(
            folder, settings, plot["processes"], lambda: sys.exit(work(folder)),
            load_signatures(settings.signatures), lambda: device_of(folder),
            nodes=nodes_of(folder, settings, plot),
            program=(sys.executable, str(Path(__file__).resolve()), "work", str(folder.path)),
        )  # fmt: skip
        return Supervisor(job, lease, say, time.time()).run()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        sys.exit(work(RunFolder(Path(sys.argv[2]))))
    sys.exit(supervise(RunFolder(Path(sys.argv[1]))))
