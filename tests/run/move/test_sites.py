"""Clusters by name, and which of them this machine is in."""

from pathlib import Path

import pytest

from longhaul.core.errors import RecipeError, UsageError
from longhaul.run.move.sites import Site, Sites, limit_of


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(
        [
            Site("east", tmp_path / "east", "s3://x/east/", mb_per_s=200.0, cache_gb=0.5),
            Site("west", tmp_path / "west"),
            Site("lab", tmp_path / "shared", "s3://x/lab", mb_per_s=50.0),
            Site("lab2", tmp_path / "shared"),
        ],
        "clusters.toml",
    )


def test_a_name_that_is_none_is_answered_with_the_nearest_or_all(sites: Sites) -> None:
    assert sites.named("west").name == "west"
    with pytest.raises(UsageError) as refused:
        sites.named("wst")
    assert refused.value.remedy == "did you mean west?"
    with pytest.raises(UsageError) as refused:
        sites.named("qqq")
    assert refused.value.remedy == "it has: east, west, lab, lab2"
    with pytest.raises(UsageError, match="this is it"):
        sites.other("east", sites.named("east"))


def test_the_folder_of_runs_says_where_this_is_if_it_is_one_clusters(sites, tmp_path) -> None:
    assert sites.here(tmp_path / "x" / ".." / "east", None).name == "east"
    assert sites.here(tmp_path / "east", "lab").name == "lab", "who says it is believed"
    for runs, words in ((tmp_path / "shared", "2 clusters have"), (tmp_path, "no cluster has")):
        with pytest.raises(UsageError, match=words) as refused:
            sites.here(runs, None)
        assert "LONGHAUL_CLUSTER" in refused.value.remedy


def test_a_copy_keeps_to_the_lower_ceiling(sites: Sites) -> None:
    assert limit_of(sites.named("east"), sites.named("lab")) == 50e6
    assert limit_of(sites.named("west")) is None
    assert sites.named("east").cache_bytes == 500_000_000
    assert sites.named("west").cache_bytes is None
    assert sites.named("east").store() == "s3://x/east"
    with pytest.raises(UsageError, match="names no remote tier"):
        sites.named("west").store()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_is_read_and_what_belongs_to_the_launcher_is_passed_over(tmp_path: Path) -> None:
    path = written(
        tmp_path / "clusters.toml",
        '[cluster.east]\nruns = "/r"\nremote = "s3://x/e"\nmb_per_s = 200\ncache_gb = 1.5\n'
        'scheduler = "slurm"\n\n[cluster.west]\nruns = "~/w"\n',
    )
    east, west = Sites.load(path).all
    assert east == Site("east", Path("/r"), "s3://x/e", 200.0, 1.5)
    assert west == Site("west", Path("~/w").expanduser())


def test_every_mistake_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    path = written(
        tmp_path / "clusters.toml",
        '[cluster.east]\nruns = 5\nmb_per_s = -1\n\n[cluster.west]\nremote = "x"\n',
    )
    with pytest.raises(RecipeError) as refused:
        Sites.load(path)
    lines = str(refused.value).splitlines()
    assert f"  cluster.east.runs: 5 is not a text in quotes ({path}:2)" in lines
    assert f"  cluster.east.mb_per_s: -1.0 is not > 0 ({path}:3)" in lines
    assert f"  cluster.west.runs: is required and was not given ({path}:5)" in lines


@pytest.mark.parametrize("text", ["", "cluster = 5", "[other]\n"])
def test_a_file_without_clusters_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RecipeError, match="names no"):
        Sites.load(written(tmp_path / "clusters.toml", text))


def test_it_is_looked_for_here_and_at_home(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match=r"clusters\.toml: not found"):
        Sites.load(None)
    with pytest.raises(UsageError, match=r"x\.toml: not found"):
        Sites.load(Path("x.toml"))
    (tmp_path / "home" / ".config" / "longhaul").mkdir(parents=True)
    written(tmp_path / "home/.config/longhaul/clusters.toml", '[cluster.h]\nruns = "r"\n')
    assert [site.name for site in Sites.load(None).all] == ["h"]
    written(tmp_path / "clusters.toml", '[cluster.c]\nruns = "r"\n')
    assert [site.name for site in Sites.load(None).all] == ["c"]
    with pytest.raises(UsageError, match="not TOML"):
        Sites.load(written(tmp_path / "x.toml", "[["))
