"""What a SkyPilot task says; its own schema is asked in tests/system."""

from launches import cluster_of, spec_of
from longhaul.cluster.launch_spec import IN_ENVIRONMENT, spec_of_json
from longhaul.cluster.sky import task


def test_a_task_has_its_nodes_gpus_and_codes() -> None:
    cluster = cluster_of(
        "sky", gpu="H100", gpus_per_node=8, infra="aws/us-east-1", image="i:1", workdir=".",
        mounts=("s3://bucket/x:/shared", "/home/me/text:/text"), environment={"A": "b"},
    )  # fmt: skip
    spec = spec_of(cluster)
    made = task(spec)
    assert made["num_nodes"] == 2
    resources = made["resources"]
    assert resources["accelerators"] == "H100:8"
    assert (resources["infra"], resources["image_id"]) == ("aws/us-east-1", "docker:i:1")
    assert resources["job_recovery"] == {
        "max_restarts_on_errors": 0, "recover_on_exit_codes": [1, 16],
    }  # fmt: skip
    assert made["file_mounts"] == {
        "/shared": {"source": "s3://bucket/x", "mode": "MOUNT"}, "/text": "/home/me/text",
    }  # fmt: skip
    assert made["envs"]["A"] == "b"
    assert spec_of_json(made["envs"][IN_ENVIRONMENT], "envs") == spec
    assert made["run"] == "python3 -m longhaul launched\n"


def test_what_is_not_given_is_not_there() -> None:
    made = task(spec_of(cluster_of("sky")))
    assert not {"workdir", "file_mounts"} & made.keys()
    assert list(made["resources"]) == ["job_recovery"]
