"""`make slurm-drills`: launches on a real Slurm of three nodes, and what befalls them there."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from drills.slurm import NODES, SlurmCluster, wait_for, why_not
from longhaul.core.events import EventKind
from longhaul.core.records import Event, StepRecord
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=why_not() or "Slurm is here"),
]
_CLUSTER = """\
[cluster.drill]
scheduler = "slurm"
runs = "{folder}/runs"
prepared = "{folder}/prepared"
workdir = "{folder}"
python = "{python}"
hours = {hours}
notice_s = {notice_s}
environment = {{ GLOO_SOCKET_IFNAME = "lo" }}
{more}
"""
_ENDS_S = 300.0
_QUICK = ("--set", "evaluation.interval_steps=1000", "--set", "evaluation.tokens=1024",
          "--set", "checkpoint.interval_steps=20")  # fmt: skip


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(autouse=True)
def whole_again(slurm: SlurmCluster) -> Iterator[None]:
    """Every drill begins and ends with three idle nodes and no job."""
    yield
    slurm.run("scancel", "--user=root", check=False)
    for name in NODES:
        slurm.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        if not slurm.alive(name):
            slurm.start_node(name)
    wait_for("three idle nodes", lambda: slurm.states() == dict.fromkeys(NODES, "idle"), 90)


@dataclass
class Job:
    """A launch of the `drill` recipe in a folder of its own."""

    slurm: SlurmCluster
    folder: Path
    number: str
    launch: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.folder / "runs" / "drill")

    @property
    def log(self) -> str:
        file = self.launch / "job.log"
        return file.read_text() if file.exists() else ""

    def fields(self) -> dict[str, str]:
        return self.slurm.job(self.number)

    def steps(self) -> list[int]:
        if not self.run.journal.exists():
            return []
        return [r.step for r in read_journal(self.run) if isinstance(r, StepRecord)]

    def reaches(self, step: int) -> None:
        wait_for(f"step {step}\n{self.log}", lambda: max(self.steps(), default=0) >= step, 90)

    def worlds(self) -> list[list[str]]:
        events = [r for r in read_journal(self.run, steps=False) if isinstance(r, Event)]
        began = [event for event in events if event.kind == EventKind.ATTEMPT_BEGAN]
        return [[node["name"] for node in event.data["nodes"]] for event in began]

    def ends(self, state: str = "COMPLETED") -> dict[str, str]:
        ended = ("COMPLETED", "FAILED", "NODE_FAIL", "TIMEOUT", "CANCELLED")
        wait_for("the job's end", lambda: self.fields().get("JobState") in ended, _ENDS_S)
        fields = self.fields()
        assert fields["JobState"] == state, self.log
        return fields


def launch(
    slurm: SlurmCluster, folder: Path, *words: str, hours: float = 0.5, notice_s: int = 20,
    more: str = "", checks: tuple[str, ...] = ("--no-qualify", "--no-preflight"),
) -> Job:  # fmt: skip
    text = _CLUSTER.format(
        folder=folder, python=sys.executable, hours=hours, notice_s=notice_s, more=more
    )
    (folder / "clusters.toml").write_text(text)
    slurm.longhaul("launch", "drill", "--on", "slurm", *checks, *_QUICK, *words, cwd=folder)
    (made,) = (folder / "launches").iterdir()
    return Job(slurm, folder, (made / "job").read_text().strip(), made)


def steps(count: int) -> tuple[str, str]:
    return "--set", f"train.steps={count}"


def test_a_run_goes_on_with_the_spare_when_a_node_is_killed(slurm, tmp_path) -> None:
    job = launch(slurm, tmp_path, "--nodes", "2", "--spares", "1", *steps(400))
    job.reaches(60)
    first, second = job.worlds()[0]
    (spare,) = set(NODES) - {first, second}
    slurm.kill_node(second)
    fields = job.ends()
    assert fields["Restarts"] == "0", "the job itself has gone on"
    assert job.worlds()[0] == [first, second]
    assert job.worlds()[-1] == [first, spare]
    assert max(job.steps()) == 400
    assert "node-gone" in job.log


def test_a_run_goes_on_elsewhere_when_the_node_of_its_supervisor_is_killed(slurm, tmp_path) -> None:
    job = launch(slurm, tmp_path, "--nodes", "2", "--spares", "0", *steps(200))
    job.reaches(60)
    first, second = job.worlds()[0]
    (other,) = set(NODES) - {first, second}
    slurm.kill_node(first)
    fields = job.ends()
    assert int(fields["Restarts"]) >= 1
    assert sorted(job.worlds()[-1]) == sorted([second, other])
    assert max(job.steps()) == 200


def test_a_drained_node_is_not_used(slurm, tmp_path) -> None:
    slurm.run("scontrol", "update", "NodeName=lh1", "State=DRAIN", "Reason=drill")
    job = launch(slurm, tmp_path, "--nodes", "2", "--spares", "1", *steps(30))
    job.ends()
    assert job.worlds() == [["lh2", "lh3"]]


def test_text_is_pulled_and_nodes_are_qualified_before_a_job_trains(slurm, tmp_path) -> None:
    """Nothing is left out here: `data pull`, `preflight`, `qualify --quick` on each node."""
    made = tmp_path / "made"
    slurm.longhaul("data", "prepare", "drill", "--prepared-dir", str(made), cwd=tmp_path)
    (text,) = (folder.name for folder in made.iterdir() if (folder / "dataset.json").exists())
    store = tmp_path / "store"
    words = ("data", "push", text, "--to", f"{store}/datasets", "--prepared-dir", str(made))
    slurm.longhaul(*words, cwd=tmp_path)
    job = launch(
        slurm, tmp_path, "--nodes", "2", "--spares", "0", "--dataset", text, *steps(30),
        more=f'remote = "{store}"', checks=(),
    )  # fmt: skip
    job.ends()
    assert max(job.steps()) == 30
    assert f"{text} is in {tmp_path / 'prepared' / text}" in job.log
    passed = json.loads((job.launch / "passed.json").read_text())
    (nodes,) = job.worlds()
    assert passed == {"preflight": True, "data": True, "qualified": sorted(nodes)}
    for name in nodes:
        report = json.loads((job.launch / f"qualify-{name}.json").read_text())
        assert len(report["checks"]) >= 20, "a battery was run"


def test_the_limit_of_time_leads_to_a_checkpoint_a_requeue_and_a_resume(slurm, tmp_path) -> None:
    # Slurm counts limits in whole minutes, and its signal may come up to a minute early.
    limits = {"hours": 2 / 60, "notice_s": 45}
    job = launch(slurm, tmp_path, "--nodes", "2", *steps(100_000), **limits)
    wait_for("a requeue", lambda: job.fields().get("Restarts") == "1", 150)
    reached = max(job.steps())
    assert "finishing this step and saving" in job.log
    assert "the job's part ended with 16" in job.log
    job.reaches(reached + 20)
    made = job.steps()
    assert made == list(range(1, len(made) + 1)), "the run went on from its last step"
    assert len(job.worlds()) == 2


@pytest.mark.parametrize(
    ("code", "more", "words", "said"),
    [
        (17, '[[cluster.drill.fault]]\nname = "rail"\ncheck = "echo rail 7 is down; false"\n', (),
         "workaround rail: `echo rail 7 is down; false` ended with 1: rail 7 is down"),
        (2, "", ("--set", 'alert.command=["true"]'), "--trust"),
    ],
)  # fmt: skip
def test_what_a_new_start_would_not_change_is_not_requeued(
    slurm, tmp_path, code, more, words, said
) -> None:
    job = launch(slurm, tmp_path, "--nodes", "2", *steps(30), *words, more=more)
    fields = job.ends("FAILED")
    assert fields["ExitCode"] == f"{code}:0"
    assert fields["Restarts"] == "0"
    assert said in job.log


def test_a_cancelled_job_saves_and_stays_cancelled(slurm, tmp_path) -> None:
    job = launch(slurm, tmp_path, "--nodes", "2", *steps(100_000))
    job.reaches(10)
    slurm.run("scancel", job.number)
    job.ends("CANCELLED")
    wait_for("the end of its part", lambda: "the job's part ended with 16" in job.log, 60)
    wait_for("an empty queue", lambda: not slurm.run("squeue", "--noheader"), 60)
    assert job.fields()["JobState"] == "CANCELLED"
    assert "saved at step" in job.log


def test_an_evicted_node_stays_excluded_after_a_requeue(slurm, tmp_path) -> None:
    ledger = tmp_path / "nodes"
    job = launch(slurm, tmp_path, "--nodes", "2", *steps(800), more=f'node_ledger = "{ledger}"')
    job.reaches(20)
    first, second = job.worlds()[0]
    (other,) = set(NODES) - {first, second}
    slurm.run("scontrol", "requeuehold", job.number)
    wait_for("a job on hold", lambda: job.fields().get("JobState") == "PENDING", 60)
    wait_for("its part's end", lambda: "ended with 16" in job.log, 60)
    slurm.longhaul("nodes", str(ledger), "--cordon", second, "--reason", "hot", cwd=tmp_path)
    # While a node clears up after the first part, Slurm gives another one.
    state = ("sinfo", "-h", "-n", second, "-o", "%T")
    wait_for("an idle node", lambda: slurm.run(*state).strip() == "idle", 90)
    # Held, the job may be changed: Slurm knows nothing of the cordon yet, and gives the node again.
    slurm.run("scontrol", "release", job.number)
    wait_for("a refusal", lambda: f"the job was given {second}, which was evicted" in job.log, 90)
    wait_for("an exclusion", lambda: job.fields().get("ExcNodeList") == second, 30)
    job.ends()
    assert sorted(job.worlds()[-1]) == sorted([first, other])
    assert f"none of {second} is among them" in job.log
    assert max(job.steps()) == 800
    # A launch of another recipe, or a later one, excludes it from the beginning.
    again = tmp_path / "again"
    again.mkdir()
    later = launch(slurm, again, "--nodes", "2", *steps(30), more=f'node_ledger = "{ledger}"')
    assert later.fields()["ExcNodeList"] == second
    later.ends()
    assert second not in later.worlds()[0]


def test_the_drills_leave_no_process(slurm) -> None:
    """Last: nothing of a job runs on an idle node."""
    for name in NODES:
        ran = slurm.run("srun", f"--nodelist={name}", "--nodes=1", "ps", "-eo", "args")
        assert "longhaul" not in ran, f"{name}: {ran}"
