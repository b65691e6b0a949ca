"""A launch as a JobSet or a Kubeflow PyTorchJob, each as the value of its YAML document.

Every pod runs its own part of the job. Nobody supervises beside them: when a rank ends, all pods
are started again together (JobSet), and the run goes on from its checkpoint.
"""

import re
import shlex
from typing import Any, Literal

from longhaul.cluster.clusters import Cluster
from longhaul.cluster.launch_spec import IN_ENVIRONMENT, LaunchSpec
from longhaul.core.errors import ExitCode

Kind = Literal["jobset", "pytorchjob"]
_PORT = 29500
_FINAL = (ExitCode.RECIPE_WRONG, ExitCode.DATA_WRONG, ExitCode.NEEDS_PERSON)
"""A new start would end the same way."""
_RESTARTS = 1000
"""Of a whole job: preemptions of a month count too."""
_AGAIN = 128
"""PyTorchJob starts a pod again that ends with 128 or more, and with less it fails
(`IsRetryableExitCode` of kubeflow/training-operator): 16 is reported as 144, 1 as 129."""


def jobset(spec: LaunchSpec) -> dict[str, Any]:
    """A `jobset.x-k8s.io/v1alpha2` JobSet: one indexed Job with a pod for each node.

    A pod that ends with 2, 3 or 17 fails its Job by `podFailurePolicy`, and that fails the JobSet;
    any other failure uses up `backoffLimit: 0` and starts the JobSet again.
    """
    name = dns_name(spec.name)
    environment = [
        _variable("NNODES", str(spec.nodes)),
        # Host names of a JobSet's pods: NAME-REPLICATEDJOB-JOB-POD.SUBDOMAIN.
        _variable("MASTER_ADDR", f"{name}-nodes-0-0.{name}"),
        _variable("MASTER_PORT", str(_PORT)),
    ]
    pods = _pod(spec, environment, _command(spec.cluster))
    pods["spec"]["restartPolicy"] = "Never"
    rules = [
        {
            "action": "FailJob",
            "onExitCodes": {
                "containerName": "longhaul",
                "operator": "In",
                "values": sorted(int(code) for code in _FINAL),
            },
        }
    ]
    job = {
        "parallelism": spec.nodes,
        "completions": spec.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": rules},
        "template": pods,
    }
    metadata = _metadata(spec, name)
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": {
                "maxRestarts": _RESTARTS,
                "rules": [
                    {
                        "name": "aPersonMustLook",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    }
                ],
            },
            "replicatedJobs": [{"name": "nodes", "replicas": 1, "template": {"spec": job}}],
        },
    }


def pytorchjob(spec: LaunchSpec) -> dict[str, Any]:
    """A `kubeflow.org/v1` PyTorchJob: a master and workers, a pod for each node."""
    name = dns_name(spec.name)
    pods = _pod(spec, [], _mapped(_command(spec.cluster)))
    pods["spec"]["containers"][0]["name"] = "pytorch"  # the operator looks for this name

    def replicas(count: int) -> dict[str, Any]:
        return {"replicas": count, "restartPolicy": "ExitCode", "template": pods}

    specs = {"Master": replicas(1)}
    if spec.nodes > 1:
        specs["Worker"] = replicas(spec.nodes - 1)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(spec, name),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": _RESTARTS},
            "pytorchReplicaSpecs": specs,
        },
    }


def dns_name(name: str) -> str:
    """A name that Kubernetes takes: small letters, digits and dashes, at most 40 of them."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"run-{plain}"
    return plain[-40:].lstrip("-0123456789").rstrip("-")


def _metadata(spec: LaunchSpec, name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/managed-by": "longhaul"}
    if spec.cluster.partition:
        labels["kueue.x-k8s.io/queue-name"] = spec.cluster.partition
    return {"name": name, "namespace": spec.cluster.namespace, "labels": labels}


def _command(cluster: Cluster) -> list[str]:
    return [cluster.python, "-m", "longhaul", "launched"]


def _mapped(command: list[str]) -> list[str]:
    """The command under a shell that passes signals on, and says 144 for 16, 129 for 1."""
    script = (
        f"{shlex.join(command)} & job=$!; trap 'kill -TERM $job' TERM; wait $job; code=$?; "
        "while kill -0 $job 2>/dev/null; do wait $job; code=$?; done; "
        f"case $code in 1|16) exit $(({_AGAIN} + code));; esac; exit $code"
    )
    return ["/bin/sh", "-c", script]


def _variable(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _pod(spec: LaunchSpec, environment: list[dict[str, Any]], command: list[str]) -> dict[str, Any]:
    cluster = spec.cluster
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounted = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, mount in enumerate(cluster.mounts):
        source, _, target = mount.rpartition(":")
        claim = not source.startswith("/")
        kind = (
            {"persistentVolumeClaim": {"claimName": source}}
            if claim
            else {"hostPath": {"path": source}}
        )
        volumes.append({"name": f"mount-{number}", **kind})
        mounted.append({"name": f"mount-{number}", "mountPath": target})
    container: dict[str, Any] = {
        "name": "longhaul",
        "image": cluster.image,
        "command": command,
        "env": [
            _variable(IN_ENVIRONMENT, spec.to_json()),
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            *(_variable(name, value) for name, value in cluster.variables.items()),
            *environment,
        ],
        "ports": [{"containerPort": _PORT}],
        "volumeMounts": mounted,
    }
    if cluster.workdir:
        container["workingDir"] = cluster.workdir
    if cluster.gpus_per_node:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(cluster.gpus_per_node)}}
    pod: dict[str, Any] = {
        "containers": [container],
        "volumes": volumes,
        "terminationGracePeriodSeconds": cluster.notice_s,
        "affinity": {},
    }
    rules: dict[str, Any] = {}
    if spec.excluded:
        apart = {
            "key": "kubernetes.io/hostname",
            "operator": "NotIn",
            "values": list(spec.excluded),
        }
        terms = {"nodeSelectorTerms": [{"matchExpressions": [apart]}]}
        rules["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    own = {"matchLabels": {"longhaul/launch": dns_name(spec.name)}}
    # Two pods of one job on one node would share its GPUs' links; where one fits it is not asked.
    rules["podAntiAffinity"] = {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": own, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
    pod["affinity"] = rules
    return {"metadata": {"labels": own["matchLabels"]}, "spec": pod}
