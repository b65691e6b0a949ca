"""How many nodes could begin now."""

import json

import pytest

from launches import cluster_of
from longhaul.core.errors import NeedsPerson
from longhaul.run.launch.capacity import free_nodes, idle_nodes, is_fit


def node(name: str, gpus: int = 8, ready: str = "True", **spec) -> dict:
    return {
        "metadata": {"name": name}, "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": ready}],
                   "allocatable": {"nvidia.com/gpu": str(gpus)}},
    }  # fmt: skip


def pod(on: str, gpus: int, phase: str = "Running") -> dict:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    return {"spec": {"nodeName": on, "containers": [limits, {}]}, "status": {"phase": phase}}


def test_a_kubernetes_node_is_free_if_ready_open_and_unasked() -> None:
    nodes = {"items": [node("a"), node("b"), node("c", ready="False"), node("d", gpus=4),
                       node("e", unschedulable=True), node("f")]}  # fmt: skip
    pods = {"items": [pod("b", 1), pod("a", 8, "Succeeded"), pod("f", 0)]}
    assert free_nodes(nodes, pods, 8) == 2
    assert free_nodes(nodes, pods, 4) == 4

    def ask(words) -> str:
        return json.dumps(nodes if "nodes" in words else pods)

    assert idle_nodes(cluster_of("k8s", image="i", gpus_per_node=8), ask) == (2, "")
    assert "cannot be understood" in idle_nodes(cluster_of("k8s", image="i"), lambda _: "{}")[1]


def test_hosts_that_answer_are_counted() -> None:
    def ask(words) -> str:
        if "b" in words:
            raise NeedsPerson("no route")
        return ""

    assert idle_nodes(cluster_of("ssh", hosts=("a", "b", "c")), ask) == (2, "")


def test_who_cannot_tell_says_why() -> None:
    def ask(words) -> str:
        raise NeedsPerson(f"{words[0]} is down")

    assert idle_nodes(cluster_of(), ask) == (None, "sinfo is down")
    assert idle_nodes(cluster_of("sky"), ask)[0] is None


@pytest.mark.parametrize(
    ("text", "fit"),
    [
        ('{"fit": true}', True), ('{"fit": false, "exit_code": 0}', False),
        ('{"exit_code": 0}', True), ('{"exit_code": 17}', False), ('{"verdict": "fail"}', False),
        ('{"verdict": "pass"}', True), ("{}", None), ("{", None), ("[]", None),
    ],
)  # fmt: skip
def test_a_report_says_whether_the_cluster_is_fit(tmp_path, text, fit) -> None:
    (tmp_path / "q.json").write_text(text)
    assert is_fit(str(tmp_path / "q.json")) is fit
    assert is_fit("") is None
    assert is_fit(str(tmp_path / "none.json")) is None
