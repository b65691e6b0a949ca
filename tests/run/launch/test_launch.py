"""`longhaul launch`: what is chosen, refused, written and submitted."""

from pathlib import Path

import pytest

from fakes import FakeClock
from longhaul.cluster.launch_spec import spec_of_json
from longhaul.config.load import load_recipe, shipped_recipes
from longhaul.core.errors import NeedsPerson, RecipeError, UsageError
from longhaul.run.launch.launch import Typed, as_yaml, launch, recipe_text
from longhaul.supervise.nodes.ledger import NodeEvent, append

CLUSTERS = """
[cluster.east]
scheduler = "slurm"
runs = "/scratch/runs"
partition = "big"
nodes = 2
spares = 1
price = 2.0
node_ledger = "{folder}/nodes"

[cluster.west]
scheduler = "slurm"
runs = "/scratch/runs"
nodes = 2
price = 1.0

[cluster.kube]
scheduler = "k8s"
runs = "/shared/runs"
image = "i:1"
mounts = ["claim:/shared"]
"""


class Slurm:
    """Answers like Slurm's clients."""

    def __init__(self, **idle: int) -> None:
        self.idle, self.asked = idle, []

    def __call__(self, words) -> str:
        self.asked.append(list(words))
        if words[0] == "sinfo" and "--Node" in words:
            return "n1\nn2\nn3\n"
        if words[0] == "sinfo":
            name = "east" if "--partition=big" in words else "west"
            return f"idle {self.idle.get(name, 0)}\n"
        if words[0] == "sbatch":
            return "42\n"
        raise NeedsPerson(f"{words[0]}: no such command")


@pytest.fixture
def typed(tmp_path, monkeypatch) -> Typed:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters.toml").write_text(CLUSTERS.format(folder=tmp_path))
    return Typed("drill", "slurm", launches=tmp_path / "launches")


def told(typed: Typed, ask, **change) -> tuple[list[str], str]:
    said, shown = [], []
    typed = Typed(**{**vars(typed), **change})
    launch(typed, said.append, shown.append, ask, FakeClock())
    return said, "".join(shown)


def test_a_launch_is_written_down_captured_and_submitted(typed, tmp_path) -> None:
    slurm = Slurm(east=3)
    said, shown = told(typed, slurm, cluster="east", options=("train.steps=70",))
    assert not shown
    (folder,) = (tmp_path / "launches").iterdir()
    assert slurm.asked[-1] == ["sbatch", "--parsable", f"{folder}/job.sh"]
    assert (folder / "job").read_text() == "42\n"
    spec = spec_of_json((folder / "launch.json").read_text(), "it")
    assert (spec.cluster_name, spec.nodes, spec.spares, spec.run) == ("east", 2, 1, "drill")
    assert load_recipe(str(folder / "recipe.toml")).recipe.train.steps == 70
    assert "torch==" in (folder / "packages.txt").read_text()
    assert said[-1] == f"launch: {folder}"
    assert f"launched: {folder.name} on east, job 42" in said


def test_a_dry_run_writes_nothing_and_asks_nobody_where_there_is_no_choice(typed, tmp_path) -> None:
    slurm = Slurm()
    said, shown = told(typed, slurm, cluster="west", dry_run=True)
    assert shown.startswith("#!/bin/bash\n#SBATCH")
    assert said[-1].startswith("would run: sbatch --parsable ")
    assert not slurm.asked
    assert not (tmp_path / "launches").exists()


def test_any_takes_the_best_and_says_why(typed) -> None:
    said, shown = told(typed, Slurm(east=2, west=1), on="any", dry_run=True)
    assert [line[:6] for line in said[:3]] == ["→ east", "  kube", "  west"]
    assert "2 of 2 nodes idle, begins now" in said[0]
    assert "kubectl: no such command" in said[1]
    assert "1 of 2 nodes idle, queues" in said[2]
    assert "--partition=big" in shown


def test_cordoned_nodes_that_slurm_knows_are_excluded(typed, tmp_path) -> None:
    for host in ("n2", "of-another-cluster"):
        append(tmp_path / "nodes", NodeEvent(kind="cordoned", parts=(f"board:{host}",), host=host,
                                             time=1.0))  # fmt: skip
    _, shown = told(typed, Slurm(), cluster="east", dry_run=True)
    assert "#SBATCH --exclude=n2\n" in shown


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cluster": "eats"}, "cluster eats: not in"),
        ({"cluster": "kube"}, "cluster kube has the scheduler slurm"),
        ({"on": "sky"}, "no cluster has the scheduler sky"),
        ({"dataset": "text"}, "--dataset text: cluster west has no remote"),
        ({"data": "gone.txt"}, "data source gone.txt: no such file here"),
        ({"data": "/home/text", "on": "k8s"}, "data source /home/text: below none of its mounts"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    typed, tmp_path, change, words
) -> None:
    with pytest.raises(UsageError) as refused:
        told(typed, Slurm(west=9), **change)
    assert words in str(refused.value)
    assert not (tmp_path / "launches").exists()


def test_a_wrong_recipe_is_refused_first(typed) -> None:
    with pytest.raises(RecipeError, match=r"optim\.lr"):
        told(typed, Slurm(), options=("optim.lr=-1",))


@pytest.mark.parametrize(
    ("options", "words"),
    [(("parallel.tensor=3",), "3"), (("parallel.shard=3",), "parallel.shard")],
)
def test_what_the_nodes_cannot_train_is_refused_here(typed, tmp_path, options, words) -> None:
    with pytest.raises(RecipeError, match=words):
        told(typed, Slurm(), options=options, cluster="west")
    assert not (tmp_path / "launches").exists()


def test_data_on_a_mount_or_a_shared_disk_is_taken(typed, tmp_path) -> None:
    (tmp_path / "text.txt").write_text("x")
    told(typed, Slurm(), data="text.txt", cluster="west", dry_run=True)
    told(typed, Slurm(), data="/shared/text", on="k8s", dry_run=True)


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_merged_recipe_is_the_same_recipe(name, tmp_path) -> None:
    resolved = load_recipe(name, ("train.max_hours=2.5",))
    path = tmp_path / "merged.toml"
    path.write_text(recipe_text(resolved))
    assert load_recipe(str(path)).recipe == resolved.recipe


def test_yaml_has_its_order_and_no_references() -> None:
    shared = ["x"]
    assert as_yaml({"b": shared, "a": shared}) == "b:\n- x\na:\n- x\n"


def test_paths_are_whole(typed, monkeypatch) -> None:
    _, shown = told(typed, Slurm(), launches=Path("here"), cluster="west", dry_run=True)
    assert f"--output={Path.cwd()}/here/drill-" in shown
