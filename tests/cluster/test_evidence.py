"""The bundle says what is wrong with a node, and nothing that is nobody else's business."""

import ast
import subprocess
import sys
from pathlib import Path

from longhaul.cluster import evidence
from longhaul.cluster.evidence import files_of, redacted
from longhaul.cluster.qualify.records import Check, Measurement, Report
from longhaul.supervise.nodes.ledger import NodeEvent, node_of

SECRETS = (
    "hf_abcdefghijklmnopqrstuvwx", "ghp_abcdefghijklmnopqrst0123456789", "AKIAABCDEFGHIJKLMNOP",
    "s3://key:secretsecret@bucket/x", "password=hunter2", "Authorization: Bearer abc.def.ghi",
    'api_key": "qwertyuiop"',
)  # fmt: skip
HIDDEN = ("hf_abc", "ghp_abc", "AKIA", "secretsecret", "hunter2", "abc.def", "qwertyuiop")


def test_secrets_paths_users_addresses_and_other_nodes_are_hidden() -> None:
    text = "; ".join(SECRETS) + (
        "; /home/alice/run-7/log.txt of alice at 10.1.2.3 and fd00:1:2::3, alice@lab.org; "
        "node-b is slow; ~/x/y"
    )
    shown = redacted(text, {"alice"}, ["node-b"])
    for secret in (*HIDDEN, "alice", "run-7", "10.1.2.3", "fd00", "node-b", "lab.org"):
        assert secret not in shown, shown
    assert "node-1 is slow" in shown


def test_figures_and_places_of_the_system_stay() -> None:
    text = (
        "12.5 GB/s; 3 files/s; /proc/meminfo; /sys/class/infiniband; Xid 79 of 0000:1b:00.0; "
        "12:30:45; std::abs"
    )
    assert redacted(text) == text


def bundle() -> dict[str, str]:
    node = node_of("a", {"board:A17"})
    check = Check(group="compute", name="same bits", node="a", device="cuda:3", verdict="fail",
                  expected="the exact product", source="whole numbers",
                  reason="cuda:3 multiplies matrices wrong", remedy="return it")  # fmt: skip
    other = Check(group="compute", name="product bf16", node="b-17", verdict="fail", reason="slow")
    slow = Measurement(group="storage", name="fsync", device="/home/alice/runs", value=0.3)
    reports = [
        Report(rank=0, host="a", parts=("board:A17",), hardware="H100", time=0.0,
               measurements=(slow,)),
        Report(rank=1, host="b-17", parts=("board:B",), hardware="H100", time=0.0),
    ]  # fmt: skip
    events = [
        NodeEvent(kind="failed", parts=("board:A17",), host="a", time=5.0, cause="xid",
                  reason="Xid 79, beside b-17", run="secret-run", who="alice"),
        NodeEvent(kind="failed", parts=("board:B",), host="b-17", time=6.0, cause="other"),
        NodeEvent(kind="failed", parts=("board:A17",), host="a", time=7.0, cause="link",
                  reason="no answer to gpu-b07"),
        NodeEvent(kind="joined", parts=("board:C",), host="gpu-b07", time=8.0),
    ]  # fmt: skip
    return files_of(node, [check, other], reports, events, {"alice"})


def test_a_bundle_says_what_speaks_against_the_node() -> None:
    files = bundle()
    assert "cuda:3 multiplies matrices wrong" in files["README.md"]
    assert "Xid 79" in files["README.md"]
    assert "board:A17" in files["README.md"]
    # In no battery's last reports, but in the ledger.
    assert not any("gpu-b07" in text for text in files.values())


def test_a_bundle_says_nothing_of_others() -> None:
    everything = "\n".join(text for name, text in bundle().items() if name != "reproducer.py")
    for hidden in ("b-17", "alice", "secret-run", "/home", "board:B"):
        assert hidden not in everything, hidden


def test_the_reproducer_stands_alone() -> None:
    path = Path(evidence.__file__).with_name("reproducer.py")
    tree = ast.parse(path.read_text())
    imported = {
        name.split(".")[0]
        for each in ast.walk(tree)
        for name in (
            [alias.name for alias in each.names] if isinstance(each, ast.Import)
            else [each.module or ""] if isinstance(each, ast.ImportFrom) else []
        )
    }  # fmt: skip
    assert imported <= set(sys.stdlib_module_names) | {"torch"}
    ended = subprocess.run([sys.executable, str(path), "--help"], capture_output=True, check=False)
    assert ended.returncode == 0
