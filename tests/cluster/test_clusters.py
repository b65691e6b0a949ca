"""`clusters.toml`: found, read, and refused with every mistake at once."""

from pathlib import Path

import pytest

from longhaul.cluster.clusters import find_clusters, load_clusters
from longhaul.core.errors import RecipeError, UsageError

WHOLE = """
[cluster.east]
scheduler = "slurm"
runs = "/scratch/runs"
partition = "h100"
gpus_per_node = 8
spares = 2
price = 2.5
cache_gb = 0.5
mounts = ["s3://bucket/a:/data"]
environment = {NCCL_IB_HCA = "mlx5", NCCL_DEBUG = "WARN"}

[[cluster.east.fault]]
name = "rail-7"
check = "true"
environment = {NCCL_IB_HCA = "^mlx5_7"}

[cluster.shelf]
runs = "/mnt/runs"
remote = "s3://bucket/shelf"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_what_is_written_is_read_and_the_rest_has_defaults(tmp_path) -> None:
    clusters = load_clusters(write(tmp_path / "c.toml", WHOLE))
    assert list(clusters.by_name) == ["east", "shelf"]
    east, shelf = clusters.named("east"), clusters.named("shelf")
    assert (east.workers, east.spares, east.cache_bytes) == (8, 2, 500_000_000)
    assert east.variables == {"NCCL_IB_HCA": "^mlx5_7", "NCCL_DEBUG": "WARN"}
    assert (shelf.scheduler, shelf.workers, shelf.cache_bytes) == (None, 1, None)
    assert list(clusters.of_scheduler("slurm")) == ["east"]
    with pytest.raises(UsageError) as refused:
        clusters.named("eats")
    assert refused.value.remedy == "did you mean east?"


def test_every_mistake_is_told_at_once_with_its_line(tmp_path) -> None:
    text = """[cluster.east]
scheduler = "slrum"
runs = "/r"
pric = 2.0
nodes = 0

[cluster.west]
scheduler = "k8s"
runs = "/r"
mounts = ["nowhere"]

[[cluster.west.fault]]
name = "x"
chek = "true"

[cluster.south]
scheduler = "ssh"
runs = "/r"

[clusters.north]
runs = "/r"
"""
    with pytest.raises(RecipeError) as refused:
        load_clusters(write(tmp_path / "c.toml", text))
    said = str(refused.value)
    assert "cluster.east.scheduler: 'slrum' is not one of" in said
    assert "did you mean 'slurm'? (c.toml:2)" in said
    assert "cluster.east.pric: unknown setting; did you mean cluster.east.price? (c.toml:4)" in said
    assert "cluster.east.nodes: 0 is not > 0 (c.toml:5)" in said
    assert (
        "cluster.west.fault.0.chek: unknown setting; did you mean cluster.west.fault.chec" in said
    )
    assert "cluster.west.fault.0.check: is required and was not given" in said
    assert "cluster.south.hosts: is required by plain SSH" in said
    assert "clusters: unknown table; did you mean cluster.NAME?" in said
    assert "longhaul recipe" not in said


def test_what_makes_no_sense_together_is_refused(tmp_path) -> None:
    text = '[cluster.w]\nscheduler = "k8s"\nruns = "/r"\nmounts = ["nowhere"]\n'
    with pytest.raises(RecipeError) as refused:
        load_clusters(write(tmp_path / "c.toml", text))
    said = str(refused.value)
    assert "has 2 problems" in said
    assert "cluster.w.image: is required by Kubernetes" in said
    assert "cluster.w.mounts.0: 'nowhere' is not SOURCE:/TARGET (c.toml:4)" in said


def test_a_damaged_or_empty_file_is_named(tmp_path) -> None:
    for text, words in (("[cluster", "c.toml"), ("", "has no table such as [cluster.east]")):
        with pytest.raises(RecipeError) as refused:
            load_clusters(write(tmp_path / "c.toml", text))
        assert words in str(refused.value)


def test_the_file_is_searched_here_and_then_in_the_home(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    at_home = tmp_path / "home" / ".config" / "longhaul" / "clusters.toml"
    environment = {"HOME": str(tmp_path / "home")}
    with pytest.raises(UsageError, match="not found") as refused:
        find_clusters(None, environment)
    assert "--clusters FILE" in refused.value.remedy
    at_home.parent.mkdir(parents=True)
    at_home.write_text(WHOLE)
    assert find_clusters(None, environment) == at_home
    (tmp_path / "clusters.toml").write_text(WHOLE)
    assert find_clusters(None, environment) == Path("clusters.toml")
    with pytest.raises(UsageError, match=r"other\.toml"):
        find_clusters(Path("other.toml"), environment)
