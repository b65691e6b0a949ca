"""A launch as a SkyPilot task, the value of its YAML document (`sky jobs launch`)."""

import shlex
from typing import Any

from longhaul.cluster.launch_spec import IN_ENVIRONMENT, LaunchSpec
from longhaul.core.errors import ExitCode


def task(spec: LaunchSpec) -> dict[str, Any]:
    """The task. A managed job is recovered where a node ends with 1 or 16, or is taken away; 2, 3
    and 17 end it, as `max_restarts_on_errors` is 0.
    """
    cluster = spec.cluster
    resources: dict[str, Any] = {
        "job_recovery": {
            "max_restarts_on_errors": 0,
            "recover_on_exit_codes": [int(ExitCode.FAILED), int(ExitCode.START_AGAIN)],
        }
    }
    if cluster.gpus_per_node:
        resources["accelerators"] = f"{cluster.gpu}:{cluster.gpus_per_node}"
    if cluster.infra:
        resources["infra"] = cluster.infra
    if cluster.image:
        resources["image_id"] = f"docker:{cluster.image}"
    found: dict[str, Any] = {
        "name": spec.name,
        "num_nodes": spec.nodes,
        "resources": resources,
        "envs": {**cluster.variables, IN_ENVIRONMENT: spec.to_json()},
        "run": shlex.join([cluster.python, "-m", "longhaul", "launched"]) + "\n",
    }
    if cluster.workdir:
        found["workdir"] = cluster.workdir
    if mounts := dict(_mount(mount) for mount in cluster.mounts):
        found["file_mounts"] = mounts
    return found


def _mount(mount: str) -> tuple[str, Any]:
    source, _, target = mount.rpartition(":")
    if "://" in source:  # a bucket is mounted, a folder is copied
        return target, {"source": source, "mode": "MOUNT"}
    return target, source
