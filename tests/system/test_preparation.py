"""Preparation from the command line: killed at any moment, on a cluster, under a cap of memory."""

import hashlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from longhaul.data.dataset import MANIFEST

LONGHAUL = (sys.executable, "-m", "longhaul", "data", "prepare")
KILLS = 10


@pytest.fixture
def recipe(tmp_path) -> Path:
    """Three sources of made-up text, 60 MB in 24 files, and a tokenizer of their own."""
    words = [f"{'aeiou'[n % 5]}{n:x}" for n in range(3000)]
    sources = []
    for name, files in (("large", 14), ("small", 8), ("single", 2)):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(files):
            chosen = random.Random(f"{name} {number}").choices(words, k=500_000)
            (folder / f"{number:02d}.txt").write_text(" ".join(chosen))
        sources.append(f'{{path = "{folder}"}}')
    path = tmp_path / "text.toml"
    path.write_text(
        f'extends = "quickstart"\nname = "text"\n[data]\nsources = [{", ".join(sources)}]\n'
        '[tokenizer]\nkind = "bpe"\nvocab_size = 2000\ntraining_mb = 2\n'
    )
    return path


def command(recipe: Path, home: Path, *options: str) -> list[str]:
    return [*LONGHAUL, str(recipe), "--prepared-dir", str(home), *options]


def prepared(recipe: Path, home: Path, *options: str) -> dict[str, str]:
    done = subprocess.run(command(recipe, home, *options), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return digests(home)


def digests(home: Path) -> dict[str, str]:
    [manifest] = home.glob(f"*/{MANIFEST}")
    files = sorted(manifest.parent.glob("*.shard"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def made(home: Path) -> dict[str, int]:
    """Every file of a stage that is whole, and when it was written."""
    files = (home / "corpus").rglob("*")
    whole = [path for path in files if path.suffix == ".json" and path.exists()]
    return {str(path): path.stat().st_mtime_ns for path in whole}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_kills_leave_the_same_shards_and_nothing_is_done_twice(recipe, tmp_path):
    began = time.monotonic()
    undisturbed = prepared(recipe, tmp_path / "undisturbed", "--workers", "2")
    whole_s = time.monotonic() - began
    home, moments = tmp_path / "home", random.Random(16)
    before: dict[str, int] = {}
    for _ in range(KILLS):
        process = subprocess.Popen(
            command(recipe, home, "--workers", "2"),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            process.wait(moments.uniform(0.1, 0.5) * whole_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if any(home.glob(f"*/{MANIFEST}")):
            break
        after = made(home)
        assert before.items() <= after.items(), "what was whole was made again"
        before = after
    assert before, "it never came to write anything before it was killed"
    assert prepared(recipe, home, "--workers", "2") == undisturbed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_cluster_of_two_workers_gives_the_same_shards(recipe, tmp_path):
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    here = prepared(recipe, tmp_path / "here", "--workers", "1")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        assert prepared(recipe, tmp_path / "there", "--ray", cluster.address) == here
    finally:
        cluster.shutdown()
