"""What the manifests say; the schemas of their projects are asked in tests/system."""

import subprocess

import pytest

from launches import cluster_of, spec_of
from longhaul.cluster.kubernetes import dns_name, jobset, pytorchjob
from longhaul.cluster.launch_spec import IN_ENVIRONMENT, spec_of_json

CLUSTER = {"image": "i:1", "gpus_per_node": 8, "mounts": ("claim:/shared", "/nvme:/nvme"),
           "partition": "queue", "environment": {"NCCL_DEBUG": "WARN"}}  # fmt: skip


def test_2_3_and_17_fail_a_jobset_and_all_else_starts_it_again() -> None:
    spec = jobset(spec_of(cluster_of("k8s", **CLUSTER)))["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, 3, 17])
    pod = job["template"]["spec"]
    assert rule["onExitCodes"]["containerName"] == pod["containers"][0]["name"]
    assert pod["restartPolicy"] == "Never", "else podFailurePolicy is refused"
    assert (job["backoffLimit"], job["completionMode"]) == (0, "Indexed")
    (failed,) = spec["failurePolicy"]["rules"]
    assert (failed["action"], failed["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])
    assert spec["failurePolicy"]["maxRestarts"] > 0


def test_a_pod_finds_its_launch_its_place_and_its_volumes() -> None:
    asked = spec_of(cluster_of("k8s", **CLUSTER), excluded=("bad-1",))
    made = jobset(asked)
    pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in container["env"]}
    assert spec_of_json(env[IN_ENVIRONMENT], "env") == asked
    assert env["MASTER_ADDR"] == "small-1-nodes-0-0.small-1"
    assert (env["NNODES"], env["NCCL_DEBUG"]) == ("2", "WARN")
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    kinds = [next(key for key in volume if key != "name") for volume in pod["volumes"]]
    assert kinds == ["emptyDir", "persistentVolumeClaim", "hostPath"]
    term = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (apart,) = term["nodeSelectorTerms"][0]["matchExpressions"]
    assert (apart["operator"], apart["values"]) == ("NotIn", ["bad-1"])
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "queue"


def test_a_pytorchjob_has_a_master_and_workers() -> None:
    specs = pytorchjob(spec_of(cluster_of("k8s", image="i:1"), nodes=3))["spec"]
    replicas = specs["pytorchReplicaSpecs"]
    assert {name: entry["replicas"] for name, entry in replicas.items()} == {
        "Master": 1, "Worker": 2,
    }  # fmt: skip
    assert replicas["Master"]["restartPolicy"] == "ExitCode"
    alone = pytorchjob(spec_of(cluster_of("k8s", image="i:1"), nodes=1))
    assert list(alone["spec"]["pytorchReplicaSpecs"]) == ["Master"]


@pytest.mark.parametrize(("code", "said"), [(0, 0), (1, 129), (2, 2), (3, 3), (16, 144), (17, 17)])
def test_a_pytorchjob_is_told_by_its_own_numbers_what_to_start_again(tmp_path, code, said) -> None:
    """`ExitCode` starts a pod again from 128 on."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nexit {code}\n")
    python.chmod(0o755)
    made = pytorchjob(spec_of(cluster_of("k8s", image="i:1", python=str(python))))
    pod = made["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    assert subprocess.run(pod["containers"][0]["command"], check=False).returncode == said


def test_names_are_those_of_dns() -> None:
    assert dns_name("My_Run.124M-20261125") == "my-run-124m-20261125"
    assert dns_name("124m") == "run-124m"
    assert len(dns_name("a" * 80)) == 40
    assert dns_name("---") == "run"
