"""The job's part, with a stand-in for Slurm's client and for `longhaul`."""

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes import FakeClock
from launches import cluster_of, spec_of
from longhaul.core.errors import ExitCode, NeedsPerson, UsageError
from longhaul.logbook.folder import create_run
from longhaul.logbook.holder import Place
from longhaul.run.launch import checks
from longhaul.run.launch import launched as launched_module
from longhaul.run.launch.launched import launched
from longhaul.supervise.nodes.ledger import NodeEvent, append

TOOL = """
import json, sys
with open({asked!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
sys.exit({codes}.get(sys.argv[1], 0))
"""


class Scene:
    """A launch in a folder, a Slurm that gives these nodes, and what was run."""

    def __init__(self, path, monkeypatch) -> None:
        self.path, self.said, self.excluded = path, [], "(null)"
        self.monkeypatch = monkeypatch
        self.give("n[1-2]")
        self.answer()

    def give(self, nodes: str, own: str = "n1") -> None:
        self.monkeypatch.setenv("SLURM_JOB_ID", "7")
        self.monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
        self.monkeypatch.setenv("SLURMD_NODENAME", own)

    def answer(self, **codes: int) -> None:
        tool, asked = self.path / "tool.py", str(self.path / "asked")
        tool.write_text(TOOL.format(asked=asked, codes=codes))
        self.monkeypatch.setattr(checks, "LONGHAUL", (sys.executable, str(tool)))

    def ask(self, words) -> str:
        if "job" in words:
            return f"JobId=7 ExcNodeList={self.excluded} NodeList=n1"
        return "".join(f"NodeName=n{n} NodeAddr=10.0.0.{n} State=IDLE\n" for n in range(1, 5))

    def begin(self, **more) -> ExitCode:
        cluster = cluster_of(runs=str(self.path / "runs"), node_ledger=str(self.path / "ledger"),
                             fault=more.pop("fault", ()))  # fmt: skip
        spec = spec_of(cluster, **({"qualify": False, "preflight": False} | more))
        (self.path / "launch.json").write_text(spec.to_json())
        return launched(self.path, self.said.append, self.ask)

    def ran(self) -> list[list[str]]:
        file = self.path / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def cordon(self, host: str) -> None:
        append(self.path / "ledger", NodeEvent(kind="cordoned", parts=(f"host:{host}",), host=host,
                                               time=time.time()))  # fmt: skip


@pytest.fixture
def scene(tmp_path, monkeypatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_a_job_trains_on_the_nodes_it_was_given(scene) -> None:
    scene.give("n[1-3]", own="n2")
    assert scene.begin(spares=1, preflight=True) == ExitCode.FINISHED
    assert [words[0] for words in scene.ran()] == ["preflight", "train"]
    train = " ".join(scene.ran()[-1])
    first, second, third = train.split("supervise.node=")[1].split("{")[1:]
    assert '"name" = "n2", "slots" = 1, "command" = []' in first, "where the supervisor is"
    assert '"address" = "10.0.0.1"' in second
    assert "--nodelist=n1" in second
    assert '"spare" = false' in second
    assert '"spare" = true' in third
    assert f'supervise.node_ledger="{scene.path}/ledger"' in train
    assert not (scene.path / "excluded").exists()


@pytest.mark.parametrize("code", [0, 2, 3, 16, 17])
def test_the_code_of_training_is_the_jobs(scene, code) -> None:
    scene.answer(train=code)
    assert scene.begin() == code


def test_a_check_that_fails_keeps_the_job_from_training(scene) -> None:
    scene.answer(preflight=2)
    assert scene.begin(preflight=True) == ExitCode.RECIPE_WRONG
    assert [words[0] for words in scene.ran()] == ["preflight"]
    with pytest.raises(NeedsPerson, match="workaround x"):
        scene.begin(fault=({"name": "x", "check": "false"},))


def test_an_evicted_node_is_refused_by_name_and_excluded_from_then_on(scene) -> None:
    scene.cordon("n2")
    scene.cordon("of-another-cluster")
    assert scene.begin() == ExitCode.START_AGAIN
    assert scene.said[-1] == "refused: the job was given n2, which was evicted"
    assert (scene.path / "excluded").read_text() == "n2", "Slurm refuses names it does not know"
    assert not scene.ran()
    scene.give("n[1,3]")
    scene.excluded = "n2"
    assert scene.begin() == ExitCode.FINISHED
    assert (scene.path / "excluded").read_text() == "n2"


def test_an_exclusion_that_has_no_effect_ends_the_job_for_a_person(scene) -> None:
    scene.cordon("n2")
    scene.excluded = "n2"
    assert scene.begin() == ExitCode.NEEDS_PERSON
    assert "gave n2 although it excludes it" in scene.said[-1]


def test_a_node_cordoned_while_the_job_ran_is_excluded_at_its_end(scene) -> None:
    tool = scene.path / "tool.py"
    tool.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from longhaul.supervise.nodes.ledger import NodeEvent, append\n"
        f"append(Path({str(scene.path / 'ledger')!r}), NodeEvent(kind='cordoned', "
        "parts=('host:n2',), host='n2', time=time.time()))\n"
        "sys.exit(16)\n"
    )
    assert scene.begin() == ExitCode.START_AGAIN
    assert (scene.path / "excluded").read_text() == "n2"


@pytest.mark.parametrize("beats", [[1.0, 1.0, 1.0, None], [1.0, 2.0]])
def test_a_start_waits_for_one_whose_node_has_died_until_it_is_stale(
    scene, monkeypatch, beats
) -> None:
    """One that goes on beating lives: `longhaul train` says who it is."""
    holders = [b and SimpleNamespace(heartbeat=b, pid=7, place=Place("n9", "", 0)) for b in beats]
    monkeypatch.setattr(launched_module, "live_holder", lambda *_: holders.pop(0))
    monkeypatch.setattr(launched_module, "_LOOK_EVERY_S", 0.01)
    (scene.path / "runs" / "small").mkdir(parents=True)
    create_run(scene.path / "runs" / "small", FakeClock())
    assert scene.begin() == ExitCode.FINISHED
    assert not holders
    assert "run small was trained by process 7 on n9: waiting up to" in scene.said[-1]


def test_unfit_nodes_are_left_out_or_end_the_start(scene) -> None:
    scene.answer(qualify=17)
    assert scene.begin(qualify=True, nodes=1, spares=1) == ExitCode.NEEDS_PERSON
    assert "no node is fit" in scene.said[-1]
    assert "train" not in [words[0] for words in scene.ran()]


def test_what_is_no_launch_is_said(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("LONGHAUL_LAUNCH", raising=False)
    with pytest.raises(UsageError, match=r"launch\.json"):
        launched(tmp_path / "none", print)
    with pytest.raises(UsageError, match="LONGHAUL_LAUNCH is not set"):
        launched(None, print)


@pytest.mark.parametrize(("scheduler", "code"), [("k8s", 17), ("sky", 16)])
def test_an_evicted_node_is_refused_where_nodes_run_their_own_ranks(
    tmp_path, monkeypatch, capsys, scheduler, code
) -> None:
    append(tmp_path / "ledger", NodeEvent(kind="cordoned", parts=("host:bad",), host="bad",
                                          time=time.time()))  # fmt: skip
    cluster = cluster_of(scheduler, image="i", runs=str(tmp_path / "runs"),
                         node_ledger=str(tmp_path / "ledger"))  # fmt: skip
    spec = spec_of(cluster, qualify=False, preflight=False)
    place = {"LONGHAUL_LAUNCH": spec.to_json(), "JOB_COMPLETION_INDEX": "1", "NNODES": "2",
             "MASTER_ADDR": "m", "NODE_NAME": "bad"}  # fmt: skip
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert launched(None, print) == code
    assert "the job was given bad, which was evicted" in capsys.readouterr().out


def test_a_node_of_kubernetes_runs_its_own_ranks(tmp_path, monkeypatch) -> None:
    tool = tmp_path / "tool.py"
    tool.write_text(
        "import os, pathlib, sys\n"
        f"pathlib.Path({str(tmp_path)!r}, 'rank-' + os.environ['RANK']).write_text(sys.argv[2])\n"
        "sys.exit(16)\n"
    )
    monkeypatch.setattr(checks, "LONGHAUL", (sys.executable, str(tool)))
    cluster = cluster_of("k8s", image="i", runs=str(tmp_path / "runs"), workers_per_node=2)
    spec = spec_of(cluster, qualify=False, preflight=False)
    place = {"LONGHAUL_LAUNCH": spec.to_json(), "JOB_COMPLETION_INDEX": "1", "NNODES": "2",
             "MASTER_ADDR": "m"}  # fmt: skip
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert launched(None, print) == ExitCode.START_AGAIN
    recipes = {file.read_text() for file in tmp_path.glob("rank-*")}
    assert sorted(file.name for file in tmp_path.glob("rank-*")) == ["rank-2", "rank-3"]
    (recipe,) = recipes
    assert recipe.endswith(".launches/small-1/recipe.toml")
    assert Path(recipe).read_text() == 'name = "small"\n'
