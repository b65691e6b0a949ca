"""A bundle for a provider's support: what speaks against one node, without what is nobody else's
business. Pure: records in, names and texts of files out.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from longhaul.cluster.qualify.comparing import figure
from longhaul.cluster.qualify.records import Check, Report
from longhaul.core.addresses import scrubbed
from longhaul.core.units import moment
from longhaul.supervise.nodes.ledger import Node, NodeEvent, concerning

_REPRODUCER = Path(__file__).with_name("reproducer.py")
_OF_SYSTEM = "sys|proc|dev"
_PATH = re.compile(rf"(?<![\w<:/.])~?/(?!(?:{_OF_SYSTEM})/)[\w.@+=~-]+(?:/[\w.@+=~-]*)*")
_TOKEN = re.compile(
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]+)"
)
"""Forms that Hugging Face, GitHub, GitLab, OpenAI, AWS, Slack and JSON web tokens have."""
_NAMED = re.compile(
    r"(?i)\b([\w-]*(?:password|passwd|secret|token|api[_-]?key|authorization)[\w-]*)"
    r"(\"?\s*[=:]\s*\"?)(?:bearer\s+|basic\s+)?[^\s\",;}]+"
)
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
_ADDRESS_6 = re.compile(
    r"(?i)(?<![\w:.])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
    r"|(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?::(?:[0-9a-f]{1,4}(?::[0-9a-f]{1,4})*)?)(?![\w:])"
)
_MAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")


def redacted(text: str, users: Iterable[str] = (), others: Sequence[str] = ()) -> str:
    """A text without secrets, users' names and paths, addresses of machines, names of other nodes.

    Args:
        text: what may be shown but for those.
        users: names of accounts.
        others: names of the other nodes; each stays told from the next, as `node-1`.
    """
    text = _NAMED.sub(r"\1\2***", _TOKEN.sub("***", scrubbed(text)))
    text = _ADDRESS_6.sub("<address>", text)
    text = _ADDRESS.sub("<address>", _MAIL.sub("<mail>", _PATH.sub("<path>", text)))
    for number, name in enumerate(others, start=1):
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", f"node-{number}", text)
    for user in users:
        if len(user) > 2:
            text = re.sub(rf"\b{re.escape(user)}\b", "<user>", text)
    return text


def files_of(
    node: Node,
    checks: Sequence[Check],
    reports: Sequence[Report],
    events: Sequence[NodeEvent],
    users: Iterable[str] = (),
) -> dict[str, str]:
    """Name → text of each file of the bundle. `checks`: of the last battery, all nodes'."""
    own = [check for check in checks if _concerns(check, node.host)]
    told = [report for report in reports if node.shares(report.parts) or report.host == node.host]
    about = concerning(node, events)
    names = {r.host for r in told} | {e.host for e in about} | {node.host}
    others = sorted(({r.host for r in reports} | {e.host for e in events if e.host}) - names)
    history = [_line(event) for event in about]

    def clean(text: str) -> str:
        return redacted(text, users, others)

    return {
        "README.md": clean(summary(node, own, history)),
        "checks.json": clean(_json([dataclasses.asdict(check) for check in own])),
        "measurements.json": clean(_json([report.as_json() for report in told])),
        "history.jsonl": clean("".join(json.dumps(line) + "\n" for line in history)),
        "reproducer.py": _REPRODUCER.read_text(encoding="utf-8"),
    }


def _concerns(check: Check, host: str) -> bool:
    ends = [end for side in check.device.split(" → ") for end in (side, side.split(" ")[0])]
    return check.node == host or (not check.node and host in ends)


def _line(event: NodeEvent) -> dict[str, Any]:
    """Without the run and the person: the provider needs neither."""
    body = dataclasses.asdict(event)
    kept = ("kind", "parts", "host", "time", "passed", "cause", "count", "reason")
    return {key: body[key] for key in kept if body[key] not in ("", 0)}


def summary(node: Node, checks: Sequence[Check], history: Sequence[Mapping[str, Any]]) -> str:
    """What support reads first."""
    bad = [check for check in checks if check.verdict in ("fail", "warn")]
    lines = [
        f"# Node {node.host}", "",
        f"Known by: {', '.join(sorted(node.parts))}", "",
        "## What was found", "",
    ]  # fmt: skip
    for check in bad:
        where = f" ({check.device})" if check.device else ""
        lines += [
            f"- **{check.name}**{where}, {check.verdict}: {check.reason}",
            f"  - measured: {figure(check.value, check.unit)}",
            f"  - expected: {check.expected} [{check.source}]",
        ]
    if not bad:
        lines.append("The last battery found nothing wrong with it.")
    lines += ["", "## What was seen before", ""]
    for event in history:
        said = event.get("reason") or event.get("cause") or ""
        lines.append(f"- {moment(float(event['time']))} UTC: {event['kind']} {said}".rstrip())
    if not history:
        lines.append("Nothing.")
    lines += [
        "", "## How to see it yourselves", "",
        "    python reproducer.py", "",
        "It needs Python and PyTorch alone, runs for a minute, and ends with 1 if the node gives "
        "wrong bits, loses memory, or slows under load; it prints the figures. Links between nodes "
        "need two of them: `python reproducer.py --link HOST` there, `--serve` here.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
