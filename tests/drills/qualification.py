"""`make qualify-drills`: each fault is injected into a real battery, which must name it, the right
device and node, and nothing else; ten batteries of the healthy machine must find nothing.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from drills.namespaces import Network, why_not
from drills.qualify_rank import burn, stop

Say = Callable[[str], None]
ROOT = Path(__file__).parents[2]
LIMIT_S = 180.0
DEADLINE_S = 8.0
"""Of an exchange in these batteries."""
NODES = ("a", "b", "c")
HEALTHY_RUNS = 10


@dataclass(frozen=True)
class Ended:
    """A battery that has ended."""

    code: int
    took_s: float
    checks: Sequence[dict] = ()
    output: str = ""

    @property
    def findings(self) -> list[dict]:
        return [check for check in self.checks if check["verdict"] in ("fail", "warn")]

    def names(self) -> list[tuple[str, str, str]]:
        return [(check["name"], check["node"], check["device"]) for check in self.findings]


@dataclass(frozen=True)
class Expected:
    """A finding that there must be: its check, and words of its node, device and reason."""

    name: str
    words: tuple[str, ...] = ()

    def matches(self, check: dict) -> bool:
        said = " ".join((check["node"], check["device"], check["reason"]))
        return check["name"] == self.name and all(word in said for word in self.words)


@dataclass(frozen=True)
class Drill:
    """One fault, and what must be found: `expected`; beside it only checks named in `also`."""

    name: str
    what: str
    run: Callable[[Path], Ended]
    expected: tuple[Expected, ...]
    also: tuple[str, ...] = ()
    within_s: float = LIMIT_S
    needs: Callable[[], str] = field(default=lambda: "")

    def wrong(self, ended: Ended) -> str:
        """Why the drill has failed; empty if it has not."""
        missing = [e for e in self.expected if not any(map(e.matches, ended.findings))]
        if missing:
            return f"not found: {missing[0].name} {missing[0].words}; found {ended.names()}"
        allowed = {e.name for e in self.expected} | set(self.also)
        if other := [name for name in ended.names() if name[0] not in allowed]:
            return f"found what is not there: {other}"
        blamed = [check for check in ended.findings if check["name"] in allowed
                  and not any(e.matches(check) for e in self.expected)
                  and check["name"] not in self.also]  # fmt: skip
        if blamed:
            return f"blamed somebody else: {[(c['name'], c['node'], c['device']) for c in blamed]}"
        if ended.code != 17:
            return f"ended with {ended.code}, not 17"
        return f"took {ended.took_s:.0f} s" if ended.took_s > self.within_s else ""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT, ROOT / "tests")))
    return os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more


def words_of(room: Path, fault: str, checks: str, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "drills.qualify_rank", fault, "qualify", "--quick", "--out",
        str(room / "out"), "--folder", str(room), "--json", str(room / "found.json"),
        "--checks", checks, "--deadline", str(DEADLINE_S), *more,
    ]  # fmt: skip


def ended_of(room: Path, code: int, began: float, output: str) -> Ended:
    found = room / "found.json"
    checks = json.loads(found.read_text())["checks"] if found.exists() else ()
    found.unlink(missing_ok=True)
    return Ended(code, time.monotonic() - began, checks, output)


def alone(room: Path, fault: str, checks: str, *more: str) -> Ended:
    """A battery of one process."""
    began = time.monotonic()
    ended = subprocess.run(
        words_of(room, fault, checks, *more), env=environment(), capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip
    return ended_of(room, ended.returncode, began, ended.stdout + ended.stderr)


def together(
    room: Path,
    faults: Sequence[str],
    checks: str,
    network: Network | None = None,
    missing: Sequence[int] = (),
    *more: str,
) -> Ended:
    """A battery of a rank on each of three imitated nodes; rank 0's end is the battery's."""
    began, port = time.monotonic(), str(free_port())
    processes: list[subprocess.Popen[str]] = []
    try:
        for rank, node in enumerate(NODES):
            if rank in missing:
                continue
            address = network.address(NODES[0]) if network else "127.0.0.1"
            device = network.interface(node) if network else "lo"
            own = environment(
                RANK=str(rank), WORLD_SIZE=str(len(NODES)), LOCAL_RANK="0", MASTER_ADDR=address,
                MASTER_PORT=port, LONGHAUL_NODE=node, GLOO_SOCKET_IFNAME=device,
                LONGHAUL_NODE_PARTS=f"board:{node.upper()}",
            )  # fmt: skip
            command = network.command(node) if network else []
            processes.append(
                subprocess.Popen(
                    [*command, *words_of(room, faults[rank], checks, *more)], env=own, text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                )
            )  # fmt: skip
        output, _ = processes[0].communicate(timeout=LIMIT_S)
        code = processes[0].returncode
        return ended_of(room, code, began, output)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def busy_core(room: Path) -> Ended:
    burners = burn([_last_core()])
    try:
        return alone(room, "none", "compute")
    finally:
        stop(burners)


def slower_than_before(room: Path) -> Ended:
    """The whole machine, with three healthy batteries in its ledger."""
    for _ in range(3):
        alone(room, "none", "compute")
    return alone(room, "half-clock", "compute")


def slow_link(room: Path) -> Ended:
    delay = {("b", "c"): 0.02, ("c", "b"): 0.02}
    with Network(NODES, delay) as network:
        return together(room, ["none"] * 3, "links", network)


def slow_cable(room: Path) -> Ended:
    """All that leaves b."""
    with Network(NODES, {("b", other): 0.02 for other in "ac"}) as network:
        return together(room, ["none"] * 3, "links", network)


def full_disk(room: Path) -> Ended:
    small = room / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(small)], check=True)
    try:
        return alone(room, "none", "storage", "--folder", str(small))
    finally:
        subprocess.run(["umount", str(small)], check=True)


def _needs_cores() -> str:
    return "" if (os.cpu_count() or 1) > 1 else "one core has no neighbour to be compared with"


def _needs_root() -> str:
    return "" if os.geteuid() == 0 else "mounting a small tmpfs needs root"


def _last_core() -> int:
    return max(range(os.cpu_count() or 1))


def drills() -> tuple[Drill, ...]:
    core = f"core {_last_core()}"
    return (
        Drill("Q1", "busy neighbours on one core", busy_core,
              (Expected("core time", (core, "another process is busy")),), needs=_needs_cores),
        Drill("Q2", "one core at half its clock",
              lambda room: alone(room, "half-clock-of-one", "compute"),
              (Expected("product fp32", (core, "its clock is low")),), needs=_needs_cores),
        Drill("Q3", "all cores at half their clock from the middle on",
              lambda room: alone(room, "throttle", "compute"), (Expected("sustained", ("core 0",)),
              Expected("sustained", (core,)))),
        Drill("Q3h", "all cores at half their clock, against the machine's own history",
              slower_than_before, (Expected("product fp32", ("earlier",)),)),
        Drill("Q4", "one flipped bit in a product",
              lambda room: alone(room, "flip-product", "compute"),
              (Expected("same bits", (core, "multiplies matrices wrong")),)),
        Drill("Q5", "one flipped bit in memory",
              lambda room: alone(room, "flip-memory", "memory"),
              (Expected("pattern", ("1 words of host",)),)),
        Drill("Q6", "20 ms between b and c", slow_link,
              (Expected("pair latency", ("b → c", "from b to c")),
               Expected("pair latency", ("c → b", "from c to b"))),
              also=("pair rate",), needs=why_not),
        Drill("Q7", "20 ms on all that b sends", slow_cable,
              (Expected("pair latency", ("b sends",)), Expected("pair latency", ("b receives",))),
              also=("pair rate",), needs=why_not),
        Drill("Q8", "a disk that takes 0.3 s for each write",
              lambda room: alone(room, "slow-disk", "storage"), (Expected("fsync"),
              Expected("write")), also=("several writers", "read")),
        Drill("Q9", "a full disk", full_disk,
              (Expected("space", ("free",)), Expected("write", ("refused",))), needs=_needs_root),
        Drill("Q10", "another driver on c",
              lambda room: together(room, ["driver", "driver", "old-driver"], "host"),
              (Expected("version of driver", ("c has driver 535.104.05",)),)),
        Drill("Q11", "b stops in front of the first collective",
              lambda room: together(room, ["none", "hang", "none"], "links"),
              (Expected("hang", ("rank 1 on b",)),), within_s=10 * DEADLINE_S),
        Drill("Q12", "b is never started",
              lambda room: together(room, ["none"] * 3, "host,links", None, [1], "--meet", "15"),
              (Expected("hang", ("rank 1 did not come to the rendezvous",)),)),
    )  # fmt: skip


def drill_qualify(names: Sequence[str], room: Path, say: Say) -> bool:
    """Run the drills of these names, all and the healthy runs if there are none; whether all is
    as it must be.
    """
    passed = True
    for drill in drills():
        if names and drill.name not in names:
            continue
        if why := drill.needs():
            say(f"left out  {drill.name:4} {drill.what}: {why}")
            continue
        own = room / drill.name
        own.mkdir()
        ended = drill.run(own)
        wrong = drill.wrong(ended)
        passed &= not wrong
        found = "; ".join(check["reason"] for check in ended.findings[:2])
        say(f"{'FAILED' if wrong else 'found':8}  {drill.name:4} {drill.what} "
            f"({ended.took_s:.0f} s): {wrong or found}")  # fmt: skip
        if wrong:
            say(ended.output)
    if not names or "H" in names:
        passed &= healthy(room, say)
    return passed


def healthy(room: Path, say: Say, runs: int = HEALTHY_RUNS) -> bool:
    """Ten batteries of three nodes, with one ledger: nothing may be found."""
    own = room / "healthy"
    own.mkdir()
    with ExitStack() as stack:
        network = None if why_not() else stack.enter_context(Network(NODES))
        wrong = 0
        for number in range(runs):
            ended = together(own, ["none"] * 3, "", network)
            fine = ended.code == 0 and not ended.findings
            wrong += not fine
            made = sum(check["verdict"] == "pass" for check in ended.checks)
            said = f"{made} checks passed" if fine else f"{ended.code}: {ended.names()}"
            say(f"{'nothing' if fine else 'FAILED':8}  H{number + 1:<3} the healthy machine "
                f"({ended.took_s:.0f} s): {said}")  # fmt: skip
            if not fine:
                for check in ended.findings:
                    say(f"    {check['reason']} [{check['expected']}]")
                if not ended.checks:
                    say(ended.output)
    return not wrong
