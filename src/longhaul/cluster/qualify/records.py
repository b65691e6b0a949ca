"""What a rank has measured, and what follows from it: the records of the battery."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from longhaul.core.errors import UsageError
from longhaul.core.units import Seconds
from longhaul.supervise.nodes.ledger import Node, node_of

Group = Literal["compute", "memory", "links", "storage", "host"]
GROUPS: tuple[Group, ...] = get_args(Group)
Verdict = Literal["pass", "warn", "fail", "not applicable"]
SEVERITY: tuple[Verdict, ...] = ("not applicable", "pass", "warn", "fail")
"""Each one outweighs those before it."""
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One figure of one device, link or folder, without a judgement."""

    group: Group
    name: str
    """Of the check: `product fp32`, `fsync`, …"""
    device: str = ""
    """What was measured: `cuda:0`, `core 1`, a folder; empty: the node."""
    value: float | None = None
    unit: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    skipped: str = ""
    """Why it does not apply here."""
    wrong: str = ""
    """What is wrong beyond any comparison: other bits, no answer, nothing written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one rank has measured."""

    rank: int
    host: str
    """Name of its node; ranks of one node share it."""
    parts: tuple[str, ...]
    """What the node is known by in the node ledger."""
    hardware: str
    """Driver's name of its device; only equals are compared."""
    time: Seconds
    took_s: Seconds = 0.0
    measurements: tuple[Measurement, ...] = ()

    @property
    def node(self) -> Node:
        """As the node ledger knows it."""
        return node_of(self.host, self.parts)

    def as_json(self) -> dict[str, Any]:
        """For a file; `report_of` reads it back."""
        return {"format": FORMAT} | dataclasses.asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A measured value, what was expected of it and why, a verdict and a remedy."""

    group: Group
    name: str
    node: str
    device: str = ""
    verdict: Verdict
    value: float | None = None
    unit: str = ""
    expected: str = ""
    """With the figure that it was compared with."""
    source: str = ""
    """Of what was expected."""
    reason: str = ""
    remedy: str = ""

    @property
    def key(self) -> str:
        """Names the figure in a node's history."""
        return f"{self.name}@{self.device}" if self.device else self.name


def report_of(body: Mapping[str, Any]) -> Report:
    """A report as `as_json` gave it; UsageError if it is none."""
    try:
        if body["format"] != FORMAT:
            raise UsageError(f"report of format {body['format']}: only {FORMAT} is read here")
        fields = {key: body[key] for key in Report.__dataclass_fields__}
        made = tuple(Measurement(**one) for one in fields.pop("measurements"))
        parts = tuple(fields.pop("parts"))
        return Report(**fields, parts=parts, measurements=made)
    except (KeyError, TypeError) as error:
        raise UsageError(f"no report of `longhaul qualify`: {error}") from error


def check_of(body: Mapping[str, Any]) -> Check:
    """A check as `dataclasses.asdict` gave it; UsageError if it is none."""
    try:
        return Check(**body)
    except TypeError as error:
        raise UsageError(f"no check of `longhaul qualify`: {error}") from error


def worst(checks: Iterable[Check]) -> Verdict:
    """The weightiest verdict among them."""
    return max((check.verdict for check in checks), key=SEVERITY.index, default="not applicable")


def groups_named(text: str) -> tuple[Group, ...]:
    """The groups in `storage,host`; all for an empty text. UsageError names what is none."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in GROUPS]:
        raise UsageError(f"--checks: {unknown[0]} is no group", f"there are: {', '.join(GROUPS)}")
    return tuple(group for group in GROUPS if not names or group in names)


def unfit_nodes(checks: Sequence[Check]) -> dict[str, str]:
    """Node → why it failed, for each node that did; a pair of nodes stands for neither."""
    found: dict[str, str] = {}
    for check in checks:
        if check.verdict == "fail" and check.node:
            found.setdefault(check.node, f"{check.name}: {check.reason}")
    return found
