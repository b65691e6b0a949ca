"""What a battery comes to: all checks, which nodes are fit, what they give. Pure; one JSON object
holds it, for schedulers, for `compare` and for the page.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import longhaul
from longhaul.cluster.qualify.comparing import Past
from longhaul.cluster.qualify.judge_devices import judge_devices
from longhaul.cluster.qualify.judge_links import judge_links, matrix
from longhaul.cluster.qualify.judge_nodes import judge_hosts, judge_storage
from longhaul.cluster.qualify.records import (
    FORMAT,
    Check,
    Group,
    Report,
    check_of,
    unfit_nodes,
)
from longhaul.core.errors import ExitCode, UsageError
from longhaul.core.units import Seconds, count
from longhaul.store.save_interval import PRIOR_S, daly_interval

_MAIN = ("product bf16", "product fp32")
"""What stands for a device's speed: the first of them that it has."""


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """One node, in one battery."""

    host: str
    parts: tuple[str, ...]
    hardware: str
    devices: int
    """GPUs, or cores that were measured."""
    slowest: float | None
    """FLOP/s of its slowest device, sustained; None if products were not measured."""
    fit: bool
    reason: str = ""
    """Why it is not."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one battery found."""

    time: Seconds
    quick: bool
    ranks: int
    checks: tuple[Check, ...]
    nodes: tuple[NodeOutcome, ...]
    rates: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """(from, to) → bytes a second between nodes."""
    latencies: Mapping[tuple[str, str], float] = field(default_factory=dict)
    save_s: Seconds | None = None
    """Of the recipe's checkpoint on the slowest node's folder; None without a recipe."""
    interval_s: Seconds | None = None
    """The checkpoint interval that follows (Daly)."""
    failures_per_day: float | None = None
    """Of all fit nodes together, as the node ledger has seen it; None: nothing seen yet."""
    response_s: tuple[Seconds, ...] = ()
    """From each cordon in the ledger to the return of what was cordoned."""

    @property
    def passed(self) -> bool:
        """Nothing has failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that have."""
        return tuple(check for check in self.checks if check.verdict == "fail")

    @property
    def findings(self) -> tuple[Check, ...]:
        """Failures and warnings."""
        return tuple(check for check in self.checks if check.verdict in ("fail", "warn"))

    @property
    def code(self) -> ExitCode:
        """For the scheduler: 0 is fit, 17 is not."""
        return ExitCode.FINISHED if self.passed else ExitCode.NEEDS_PERSON

    @property
    def usable(self) -> float | None:
        """FLOP/s that training in step gets: as many times the slowest fit device as are fit."""
        fit = [node for node in self.nodes if node.fit and node.slowest is not None]
        if not fit:
            return None
        return sum(n.devices for n in fit) * min(n.slowest for n in fit if n.slowest is not None)

    @property
    def devices(self) -> int:
        """Of all nodes, fit or not: these are paid for."""
        return sum(node.devices for node in self.nodes)

    def sentence(self) -> str:
        """The verdict in one line."""
        nodes = count(len(self.nodes), "node")
        if self.passed:
            warned = sum(check.verdict == "warn" for check in self.checks)
            made = sum(check.verdict == "pass" for check in self.checks)
            also = f", {count(warned, 'warning')}" if warned else ""
            return f"fit: {count(made, 'check')} passed on {nodes}{also}"
        unfit = [node.host for node in self.nodes if not node.fit]
        who = f"; unfit: {', '.join(unfit)}" if unfit else ""
        return f"not fit: {count(len(self.failed), 'check')} failed on {nodes}{who}"

    def as_json(self) -> dict[str, Any]:
        """For a file; `outcome_of` reads it back."""
        own = dataclasses.asdict(self)
        own["rates"] = [[*pair, value] for pair, value in self.rates.items()]
        own["latencies"] = [[*pair, value] for pair, value in self.latencies.items()]
        head = {
            "format": FORMAT, "longhaul": longhaul.__version__, "exit_code": int(self.code),
            "verdict": self.sentence(), "usable_flops": self.usable,
        }  # fmt: skip
        return head | own


def judge(
    reports: Sequence[Report],
    past: Past,
    *,
    size: int,
    time: Seconds,
    quick: bool,
    groups: Sequence[Group],
    absent: Sequence[tuple[int, str, str]] = (),
    failures_per_day: float | None = None,
    response_s: Sequence[Seconds] = (),
) -> Outcome:
    """The outcome of what the ranks have measured, `past` being what their nodes gave before."""
    checks: list[Check] = [*judge_devices(reports, past)]
    if "links" in groups or absent:
        checks += judge_links(reports, past, absent)
    checks += [*judge_storage(reports, past), *judge_hosts(reports, past)]
    unfit = unfit_nodes(checks)
    saves = _values(reports, "save")
    save_s = max(saves) if saves else None
    interval = None
    if save_s is not None:
        seen = failures_per_day
        mean_s = 86_400 / seen if seen else PRIOR_S / max(1, size)
        interval = max(save_s, daly_interval(save_s, mean_s)) if save_s > 0 else None
    return Outcome(
        time=time, quick=quick, ranks=size, checks=tuple(checks),
        nodes=tuple(_node(name, reports, unfit) for name in dict.fromkeys(r.host for r in reports)),
        rates=matrix(reports, "pair rate"), latencies=matrix(reports, "pair latency"),
        save_s=save_s, interval_s=interval, failures_per_day=failures_per_day,
        response_s=tuple(response_s),
    )  # fmt: skip


def _values(reports: Sequence[Report], name: str) -> list[float]:
    return [
        one.value
        for report in reports
        for one in report.measurements
        if one.name == name and one.value is not None
    ]


def _node(name: str, reports: Sequence[Report], unfit: Mapping[str, str]) -> NodeOutcome:
    own = [report for report in reports if report.host == name]
    main = next((kind for kind in _MAIN if _values(own, kind)), "")
    speeds = _values(own, main)
    kept = _values(own, "sustained")
    slowest = min(speeds) * min(1.0, statistics.median(kept)) if speeds and kept else None
    return NodeOutcome(
        host=name, parts=own[0].parts, hardware=own[0].hardware, devices=len(speeds),
        slowest=slowest, fit=name not in unfit, reason=unfit.get(name, ""),
    )  # fmt: skip


def outcome_of(body: Mapping[str, Any], name: str) -> Outcome:
    """An outcome as `as_json` gave it; UsageError naming the file if it is none."""
    again = "make it with `longhaul qualify --json FILE`"
    if body.get("format") != FORMAT or "checks" not in body:
        raise UsageError(f"{name}: no outcome of `longhaul qualify` (format {FORMAT})", again)
    try:
        fields = {key: body[key] for key in Outcome.__dataclass_fields__}
        fields["checks"] = tuple(check_of(check) for check in body["checks"])
        fields["nodes"] = tuple(
            NodeOutcome(**{**node, "parts": tuple(node["parts"])}) for node in body["nodes"]
        )
        for matrix_name in ("rates", "latencies"):
            fields[matrix_name] = {(a, b): float(value) for a, b, value in body[matrix_name]}
        fields["response_s"] = tuple(body["response_s"])
        return Outcome(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{name}: no outcome of `longhaul qualify`: {error}", again) from error
