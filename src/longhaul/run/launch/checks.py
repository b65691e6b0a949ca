"""What a job does before it trains: workarounds, code, data, preflight, qualification of nodes."""

import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longhaul.cluster.allocation import Given
from longhaul.cluster.clusters import Cluster
from longhaul.cluster.launch_spec import RECIPE_NAME, LaunchSpec
from longhaul.core.errors import ExitCode, NeedsPerson
from longhaul.core.files import write_json
from longhaul.core.strict import DamagedFile, read_json
from longhaul.core.units import Seconds
from longhaul.run.launch.capture import captured

LONGHAUL = (sys.executable, "-m", "longhaul")
_CHECK_WITHIN_S: Seconds = 120.0
QUALIFY_WITHIN_S: Seconds = 1800.0
_PASSED = "passed.json"

Run = Callable[[Sequence[str]], int]
"""Runs a command with its output in the job's log, and returns its exit code."""


def verify_workarounds(name: str, cluster: Cluster, say: Callable[[str], None]) -> None:
    """Run the check of each known fault; NeedsPerson names the workarounds that do not hold."""
    broken = []
    for fault in cluster.fault:
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", fault.check], capture_output=True, text=True, check=False,
                timeout=_CHECK_WITHIN_S, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            code, said = str(done.returncode), (done.stdout + done.stderr).strip()
        except subprocess.TimeoutExpired:
            code, said = "no exit code", f"it did not end within {_CHECK_WITHIN_S:.0f} s"
        if code == "0":
            say(f"workaround {fault.name}: holds")
        else:
            last = said.splitlines()[-1] if said else "it printed nothing"
            broken.append(f"workaround {fault.name}: `{fault.check}` ended with {code}: {last}")
    if broken:
        raise NeedsPerson(
            f"cluster {name}: " + "; ".join(broken),
            "mend it, or change the fault's entry in clusters.toml and launch again",
        )


def drift(spec: LaunchSpec, workdir: Path) -> str:
    """How the code differs from what was launched; empty if it does not, or nobody can tell."""
    now, then = captured(workdir, None), spec.captured
    if then.version != now.version:
        return f"longhaul {then.version} was launched, {now.version} is installed"
    if then.commit and now.commit and then.commit != now.commit:
        return f"commit {then.commit[:12]} was launched, {now.commit[:12]} is checked out"
    if then.commit and now.commit and then.diff_sha256 != now.diff_sha256:
        return "files have changed since the launch, without a commit"
    return ""


@dataclass
class Passed:
    """What earlier starts of the same launch have checked, and later ones need not."""

    path: Path
    preflight: bool = False
    data: bool = False
    qualified: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "Passed":
        """As the launch's folder has it; nothing if it is damaged."""
        try:
            body: dict[str, Any] = read_json(folder / _PASSED)
            return cls(folder / _PASSED, body["preflight"] is True, body["data"] is True,
                       [str(name) for name in body["qualified"]])  # fmt: skip
        except (OSError, DamagedFile, KeyError, TypeError):
            return cls(folder / _PASSED)

    def write(self) -> None:
        """Keep it."""
        body = {"preflight": self.preflight, "data": self.data, "qualified": self.qualified}
        write_json(self.path, body)


def bring_data(spec: LaunchSpec, passed: Passed, run: Run) -> int:
    """Pull the prepared text, which verifies each file, or let it come to the nodes while they read
    it; the exit code of `longhaul data pull`.
    """
    if not spec.dataset or passed.data:
        return ExitCode.FINISHED
    cluster = spec.cluster
    words = ["data", "pull", spec.dataset, "--from", f"{cluster.remote.rstrip('/')}/datasets"]
    words += ["--prepared-dir", cluster.prepared, "--runs-dir", cluster.runs]
    words += ["--mb-per-s", f"{cluster.mb_per_s:g}"] if cluster.mb_per_s is not None else []
    order = tomllib.loads(spec.recipe).get("order", {})
    if cluster.cache and order.get("shuffle_tokens"):
        words += ["--stream", "--cache", cluster.cache]
        words += ["--cache-gb", f"{cluster.cache_gb:g}"] if cluster.cache_gb is not None else []
    code = run((*LONGHAUL, *words))
    passed.data = code == ExitCode.FINISHED
    passed.write()
    return code


def preflight(spec: LaunchSpec, folder: Path, passed: Passed, run: Run) -> int:
    """`longhaul preflight` of the recipe, once a launch; its exit code."""
    if not spec.preflight or passed.preflight:
        return ExitCode.FINISHED
    recipe = str(folder / RECIPE_NAME)
    words = [*LONGHAUL, "preflight", recipe, "--prepared-dir", spec.cluster.prepared]
    workers = spec.cluster.workers
    words += ["--nproc", str(workers)] if workers > 1 else []
    words += ["--world", str(workers * spec.nodes)]
    code = run(words)
    passed.preflight = code == ExitCode.FINISHED
    passed.write()
    return code


def unfit(spec: LaunchSpec, folder: Path, nodes: Sequence[Given], passed: Passed) -> dict[str, str]:
    """Name → reason of the nodes that `longhaul qualify --quick` finds unfit, all at the same time;
    nodes that have passed under this launch are not asked again.
    """
    if not spec.qualify:
        return {}
    asked = [node for node in nodes if node.name not in passed.qualified]
    begun = []
    for node in asked:
        report = folder / f"qualify-{node.name}.json"
        words = [*node.command, *LONGHAUL, "qualify", "--quick", "--json", str(report)]
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        begun.append((node, report, process))
    found = {}
    for node, report, process in begun:
        try:
            said, _ = process.communicate(timeout=QUALIFY_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            found[node.name] = f"it did not end within {QUALIFY_WITHIN_S:.0f} s"
            continue
        if process.returncode != 0:
            last = said.strip().splitlines()[-1] if said.strip() else "it printed nothing"
            found[node.name] = f"qualify ended with {process.returncode} ({report.name}): {last}"
    passed.qualified += [node.name for node in asked if node.name not in found]
    passed.write()
    return found
