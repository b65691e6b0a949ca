"""Clusters by name, and which of them this machine is in."""

from pathlib import Path

import pytest

from longhaul.core.errors import UsageError
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


def test_what_copies_need_of_a_file(tmp_path: Path) -> None:
    path = written(
        tmp_path / "clusters.toml",
        '[cluster.east]\nruns = "/r"\nremote = "s3://x/e"\nmb_per_s = 200\ncache_gb = 1.5\n'
        'scheduler = "slurm"\nprepared = "/p"\n\n[cluster.west]\nruns = "~/w"\n',
    )
    east, west = Sites.load(path).all
    assert east == Site("east", Path("/r"), "s3://x/e", 200.0, 1.5, Path("/p"))
    assert west == Site("west", Path("~/w").expanduser())
