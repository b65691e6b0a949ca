"""`longhaul launch` and `longhaul image`, as typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

_CLUSTERS = """
[cluster.east]
scheduler = "slurm"
runs = "/scratch/runs"
environment = { NCCL_DEBUG = "WARN" }

[cluster.kube]
scheduler = "k8s"
runs = "/shared/runs"
image = "i:1"
"""


@pytest.fixture
def typed(tmp_path):
    (tmp_path / "clusters.toml").write_text(_CLUSTERS)

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "longhaul", *words], cwd=tmp_path, capture_output=True,
            text=True, check=False, env={**os.environ, "HOME": str(tmp_path), **environment},
        )  # fmt: skip

    return run


def test_a_dry_run_prints_the_document_alone_and_writes_nothing(typed, tmp_path: Path) -> None:
    script = typed("launch", "drill", "--on", "slurm", "--nodes", "4", "--dry-run")
    assert script.returncode == 0, script.stderr
    assert script.stdout.startswith("#!/bin/bash\n")
    assert "--nodes=4" in script.stdout
    assert "→ east: capacity unknown (a dry run does not ask)" in script.stderr
    assert "would run: sbatch --parsable" in script.stderr
    manifest = typed("launch", "drill", "--on", "k8s", "--kind", "pytorchjob", "--dry-run")
    assert yaml.safe_load(manifest.stdout)["kind"] == "PyTorchJob"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["clusters.toml"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("drill", "--on", "sky"), "no cluster has the scheduler sky"),
        (("drill", "--on", "slurm", "--cluster", "est"), "did you mean east?"),
        (("drill", "--on", "cloud"), "cloud"),
        (("dril", "--on", "slurm"), "did you mean drill"),
        (("drill", "--on", "slurm", "--clusters", "none.toml"), "none.toml"),
    ],
)
def test_a_mistake_ends_with_2_and_says_the_way_out(typed, words, said) -> None:
    done = typed("launch", *words, "--dry-run")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_no_scheduler_here_ends_with_17_and_names_its_client(typed) -> None:
    bare = str(Path(sys.executable).parent)
    done = typed("launch", "drill", "--on", "slurm", PATH=bare)
    assert done.returncode == 17
    assert "sbatch: No such file or directory" in done.stderr


def test_the_jobs_part_says_what_it_lacks(typed) -> None:
    done = typed("launched")
    assert done.returncode == 2
    assert "LONGHAUL_LAUNCH is not set" in done.stderr


def test_image_prints_a_container_file(typed) -> None:
    done = typed("image", "--cluster", "east", "--torch", "torch==2.13.0", "--extra", "s3")
    assert done.returncode == 0, done.stderr
    assert 'ENV NCCL_DEBUG="WARN"' in done.stdout
    assert 'pip install --no-cache-dir ".[s3]"' in done.stdout
