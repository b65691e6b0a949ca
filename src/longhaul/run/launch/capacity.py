"""How many nodes of a cluster could begin now, asked of its scheduler."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longhaul.cluster import slurm, ssh
from longhaul.cluster.clusters import Cluster
from longhaul.core.errors import NeedsPerson
from longhaul.core.strict import DamagedFile, read_object
from longhaul.run.launch.places import Ask

_GPUS = "nvidia.com/gpu"


def idle_nodes(cluster: Cluster, ask: Ask) -> tuple[int | None, str]:
    """Idle nodes; or None, and why nobody can tell."""
    try:
        match cluster.scheduler:
            case "slurm":
                where = [f"--partition={cluster.partition}"] if cluster.partition else []
                return slurm.idle_nodes(ask(["sinfo", "--noheader", "--format=%t %D", *where])), ""
            case "k8s":
                nodes = json.loads(ask(["kubectl", "get", "nodes", "--output=json"]))
                pods = ["kubectl", "get", "pods", "--all-namespaces", "--output=json"]
                return free_nodes(nodes, json.loads(ask(pods)), cluster.gpus_per_node), ""
            case "ssh":
                return sum(_answers(cluster, host, ask) for host in cluster.hosts), ""
            case _:
                return None, "SkyPilot finds out when it provisions"
    except NeedsPerson as error:
        return None, error.message
    except (ValueError, KeyError, TypeError) as error:
        return None, f"kubectl printed what cannot be understood: {error!r}"


def _answers(cluster: Cluster, host: str, ask: Ask) -> bool:
    try:
        ask([*ssh.step_command(cluster, host, "."), "true"])
    except NeedsPerson:
        return False
    return True


def free_nodes(nodes: Mapping[str, Any], pods: Mapping[str, Any], gpus: int) -> int:
    """Nodes that are ready, may be scheduled on, and have so many GPUs that no pod has asked for;
    of what `kubectl get --output=json` prints.
    """
    asked: dict[str, int] = {}
    for pod in pods["items"]:
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        node = pod["spec"].get("nodeName", "")
        for container in pod["spec"]["containers"]:
            limits = container.get("resources", {}).get("limits", {})
            asked[node] = asked.get(node, 0) + int(limits.get(_GPUS, 0))
    free = 0
    for node in nodes["items"]:
        name, status = node["metadata"]["name"], node["status"]
        ready = any(
            c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])
        )
        has = int(status.get("allocatable", {}).get(_GPUS, 0)) - asked.get(name, 0)
        free += ready and not node["spec"].get("unschedulable", False) and has >= gpus
    return free


def is_fit(report: str) -> bool | None:
    """What a report of `longhaul qualify --json` says: its `fit`, its `verdict` or its `exit_code`;
    None if there is no report, or none that can be read.
    """
    if not report:
        return None
    try:
        body = read_object(Path(report))
    except (OSError, DamagedFile):
        return None
    if isinstance(body.get("fit"), bool):
        return bool(body["fit"])
    if "exit_code" in body:
        return bool(body["exit_code"] == 0)
    if isinstance(body.get("verdict"), str):
        return body["verdict"] not in ("fail", "unfit", "failed")
    return None
