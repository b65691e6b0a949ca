"""`make launch-schemas`: what `launch --dry-run` prints, read by the clients it is meant for."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

_ROOT = Path(__file__).parents[2]
_PYTHON = Path(os.environ.get("LAUNCH_SCHEMAS", _ROOT / ".venv-launch" / "bin" / "python"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not _PYTHON.exists(), reason=f"{_PYTHON} is not there (make launch-schemas builds it)"
    ),
]
_CLUSTERS = """
[cluster.kube]
scheduler = "k8s"
runs = "/shared/runs"
image = "registry.example/longhaul:1"
mounts = ["shared-claim:/shared", "/nvme:/nvme"]
partition = "queue"
gpus_per_node = 8
nodes = 4
workdir = "/work"
node_ledger = "{folder}/nodes"
environment = {{ NCCL_IB_HCA = "mlx5" }}

[cluster.cloud]
scheduler = "sky"
runs = "/shared/runs"
infra = "aws/us-east-1"
image = "registry.example/longhaul:1"
mounts = ["s3://bucket/runs:/shared"]
gpu = "H100"
gpus_per_node = 8
nodes = 2
environment = {{ NCCL_DEBUG = "WARN" }}
"""


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> dict[str, str]:
    from longhaul.supervise.nodes.ledger import NodeEvent, append

    folder = tmp_path_factory.mktemp("launch")
    (folder / "clusters.toml").write_text(_CLUSTERS.format(folder=folder))
    append(folder / "nodes", NodeEvent(kind="cordoned", parts=("board:1",), host="bad", time=1.0))
    asked = {"jobset": ("k8s",), "pytorchjob": ("k8s", "--kind", "pytorchjob"), "sky": ("sky",)}
    found = {}
    for kind, words in asked.items():
        done = subprocess.run(
            [sys.executable, "-m", "longhaul", "launch", "quickstart", "--dry-run", "--on", *words],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found[kind] = done.stdout
    return found


def asked(kind: str, text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    # SkyPilot keeps a folder in the home.
    environment = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    environment.pop("PYTHONPATH", None)
    script = str(Path(__file__).with_name("launch_schemas.py"))
    return subprocess.run(
        [str(_PYTHON), script, kind], input=text, env=environment, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["jobset", "pytorchjob", "sky"])
def test_its_own_client_reads_all_of_a_launch(documents, kind, tmp_path) -> None:
    done = asked(kind, documents[kind], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("jobset", ("spec", "failurePolicy", "maxRestart"), 3, "maxRestart"),
        ("jobset", ("spec", "replicatedJobs"), {"name": "x"}, ""),
        ("pytorchjob", ("spec", "runPolicy", "backofLimit"), 3, "backofLimit"),
        ("sky", ("num_node",), 2, "num_node"),
        ("sky", ("resources", "job_recovery", "recover_on_exit_codes"), [999], "999"),
    ],
)
def test_a_mistake_is_found(documents, kind, path, value, words, tmp_path) -> None:
    document = yaml.safe_load(documents[kind])
    table = document
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    done = asked(kind, yaml.safe_dump(document), tmp_path)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr
