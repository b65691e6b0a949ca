"""Verdicts on links: which cable is bad, which rank did not come. Pure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from longhaul.cluster.qualify.comparing import (
    Limits,
    Past,
    Reference,
    figure,
    history,
    judged,
    plain,
    same_elsewhere,
)
from longhaul.cluster.qualify.comparing import neighbours as beside
from longhaul.cluster.qualify.records import Check, Measurement, Report
from longhaul.core.devices import device_of_driver

_FABRIC = Limits(warn=0.8, fail=0.6)
"""Of rates between GPUs. Assumed: equal cables differ by a few per cent, and one that has lost half
its lanes, the usual fault, by half."""
_SOCKETS = Limits(warn=0.15, fail=0.15)
"""Of rates over TCP between processes on shared cores: the best of three rounds still varies
threefold with the load (measured); a link that fell back to the next lower kind has a tenth."""
_LATENCY = Limits(warn=0.2, fail=0.2, lower_is_better=True)
_LEAST_LATENCY_S = 1e-3
"""A latency below it is no fault, however much smaller another one is: a scheduler's time slice."""
_NETWORK_TABLE = Limits(warn=0.7, fail=0.5)
_HOST_TABLE = Limits(warn=0.7, fail=0.5)

_CABLE = "exchange the cable or the port of that side, then qualify both nodes again"
_ROUTE = "look at the switch ports and the route between the two"
_HANG = "look at the log and the network of the node that did not come; start without it"
_COPY = "look at the device's PCIe slot and NVLink (nvidia-smi topo -m, nvidia-smi nvlink -s)"
_SLOWER = "look at the pairs of nodes: the slowest link holds up all"

Matrix = Mapping[tuple[str, str], float]
"""(from, to) → a figure of that link."""


@dataclass(frozen=True, slots=True)
class BadSide:
    """A node, or a pair of nodes, whose link is slow."""

    nodes: tuple[str, ...]
    """One: all its links in this direction; two: only what goes from the first to the second."""
    direction: str
    value: float
    usual: float


def judge_links(
    reports: Sequence[Report], past: Past, absent: Sequence[tuple[int, str, str]]
) -> Iterator[Check]:
    """Verdicts on the group `links`; `absent`: rank, node and what it did not come to."""
    yield from _absent(absent)
    seen_hang = False
    for report in reports:
        for one in report.measurements:
            if one.group != "links" or (one.name.startswith("pair ") and not one.skipped):
                continue
            if one.name == "hang":
                # Who waited in vain is not at fault, if it is known who did not come.
                if (one.wrong and absent) or (seen_hang and not one.wrong):
                    continue
                seen_hang = True
                expected = "every rank joins a first collective and leaves it before the deadline"
                found = plain(report, one, _HANG, expected)
                # Whoever waited is not at fault, so no node is blamed for what it did not get.
                yield replace(found, node="", device=f"rank {report.rank}") if one.wrong else found
            else:
                yield _rate(reports, past, report, one)
    yield from _pairs(reports, past)


def _absent(absent: Sequence[tuple[int, str, str]]) -> Iterator[Check]:
    for rank, node, phase in absent:
        where = f" on {node}" if node else ""
        yield Check(
            group="links", name="hang", node=node, device=f"rank {rank}", verdict="fail",
            expected="every rank comes before the deadline", source="the battery's own deadlines",
            reason=f"rank {rank}{where} did not come to {phase}", remedy=_HANG,
        )  # fmt: skip


def _rate(reports: Sequence[Report], past: Past, report: Report, one: Measurement) -> Check:
    """Copies against the table and equals; collectives, which all ranks share, against the past."""
    if one.wrong or one.skipped or one.value is None:
        return plain(report, one, _COPY)
    device = device_of_driver(report.hardware)
    table = None
    if device is not None and one.name in ("host to device", "device to host"):
        pcie = 64e9 if device.key.startswith(("h", "b", "gb", "rtx5", "mi")) else 32e9
        what = "PCIe 5.0 ×16" if pcie > 32e9 else "PCIe 4.0 ×16"
        table = Reference(pcie, what, "PCI-SIG, 16 lanes, one direction", _HOST_TABLE)
    limits = _FABRIC if device is not None else _SOCKETS
    equals = same_elsewhere(reports, report, one) if one.name.endswith("device") else []
    before = history(past.get(report.host, {}).get(_key(one), ()), limits)
    remedy = _COPY if equals or table else _SLOWER
    return judged(report, one, [table, beside(one.value, equals, limits), before], remedy)


def _key(one: Measurement) -> str:
    return f"{one.name}@{one.device}" if one.device else one.name


def _pairs(reports: Sequence[Report], past: Past) -> Iterator[Check]:
    """One check for each node's sending, receiving and latency, and one for each bad pair."""
    if not (rates := matrix(reports, "pair rate")):
        return
    device = device_of_driver(reports[0].hardware)
    limits = _FABRIC if device is not None else _SOCKETS
    table = None
    if device is not None:
        what = f"usual network of {device.key}"
        source = device.source_of("network_rate")
        table = Reference(device.network_rate, what, source, _NETWORK_TABLE)
    bad = bad_sides(rates, limits)
    slow = bad_sides(matrix(reports, "pair latency"), _LATENCY, least=_LEAST_LATENCY_S)
    for found, name, unit, bars in (
        (bad, "pair rate", "B/s", limits),
        (slow, "pair latency", "s", _LATENCY),
    ):
        for side in found:
            yield _bad(side, name, unit, bars)
    named = {side.nodes for side in (*bad, *slow)}
    for report in reports:
        for one in report.measurements:
            if not one.name.startswith("pair ") or one.value is None:
                continue
            ends = tuple(one.device.split(" → "))
            if ends in named or any((end,) in named for end in ends):
                continue
            bars = limits if one.name == "pair rate" else _LATENCY
            own = history(past.get(report.host, {}).get(_key(one), ()), bars)
            if bars is _LATENCY and one.value < _LEAST_LATENCY_S:
                own = None
            usual = usual_of(matrix(reports, one.name), bars, one.value)
            yield judged(report, one, [usual, own, table if bars is limits else None], _ROUTE)


def usual_of(found: Matrix, limits: Limits, own: float) -> Reference | None:
    """The median of all pairs; None for two nodes, whose directions are all that there is."""
    if len(found) <= 2 or (limits.lower_is_better and own < _LEAST_LATENCY_S):
        return None
    middle = statistics.median(found.values())
    # A pair is bad by `bad_sides` alone; this is what it is shown beside.
    return Reference(middle, "median of all pairs", "measured in this battery",
                     Limits(0.0, 0.0, limits.lower_is_better))  # fmt: skip


def matrix(reports: Sequence[Report], name: str) -> dict[tuple[str, str], float]:
    """(from, to) → what was measured between two nodes."""
    found = {}
    for report in reports:
        for one in report.measurements:
            if one.name == name and one.value is not None:
                begin, _, end = one.device.partition(" → ")
                found[begin, end] = one.value
    return found


def bad_sides(found: Matrix, limits: Limits, least: float = 0.0) -> list[BadSide]:
    """Who is to blame for slow pairs.

    A pair is as fast as its slower side, so a node is as fast as its best pair. A node whose best
    pair is far from the median of all nodes' best has a bad link. What is slow between two nodes
    that are fast with others is that pair's route. With two nodes there is one pair, and nobody to
    compare it with.

    Args:
        found: figures of the links.
        limits: shares of the usual figure; `warn` is not used.
        least: a time below it is never bad.
    """
    nodes = sorted({node for pair in found for node in pair})
    if len(nodes) < 3:
        return []
    best = min if limits.lower_is_better else max
    bad: list[BadSide] = []
    both: dict[str, dict[str, float]] = {}
    for place, direction in enumerate(("sends", "receives")):
        each = {
            node: best(value for pair, value in found.items() if pair[place] == node)
            for node in nodes if any(pair[place] == node for pair in found)
        }  # fmt: skip
        both[direction] = each
        usual = statistics.median(each.values())
        bad += [
            BadSide((node,), direction, value, usual)
            for node, value in each.items()
            if _is_bad(value, usual, limits, least)
        ]
    blamed = {side.nodes[0] for side in bad}
    for (begin, end), value in sorted(found.items()):
        if blamed & {begin, end}:
            continue
        ends = both["sends"][begin], both["receives"][end]
        usual = max(ends) if limits.lower_is_better else min(ends)
        if _is_bad(value, usual, limits, least):
            bad.append(BadSide((begin, end), "sends", value, usual))
    return bad


def _is_bad(value: float, usual: float, limits: Limits, least: float) -> bool:
    if limits.lower_is_better:
        return value > least and value > usual / limits.fail
    return value < usual * limits.fail


def _bad(side: BadSide, name: str, unit: str, limits: Limits) -> Check:
    usual = Reference(side.usual, "usual there", "measured in this battery", limits)
    said = f"{figure(side.value, unit)} where {figure(side.usual, unit)} is usual"
    if len(side.nodes) == 1:
        node = side.nodes[0]
        label, reason, remedy = f"{node} {side.direction}", f"{node} {side.direction}", _CABLE
        reason += f" slowly with every other node: {said}"
    else:
        begin, end = side.nodes
        node, label, remedy = "", f"{begin} → {end}", _ROUTE
        reason = f"from {begin} to {end}: {said}; both are fast with others"
    return Check(
        group="links", name=name, node=node, device=label, verdict="fail", value=side.value,
        unit=unit, expected=usual.expected(unit), source=usual.source, reason=reason,
        remedy=remedy,
    )  # fmt: skip
