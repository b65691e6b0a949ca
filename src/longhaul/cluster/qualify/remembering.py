"""Outcomes in the node ledger, and what it says of nodes: their earlier figures, how often they
fail, how long a provider takes. A node that failed is cordoned, so that placement refuses it; a
battery that it passes afterwards, with every check that it had failed, lifts that cordon, and no
other.
"""

import json
from collections.abc import Iterable, Sequence

from longhaul.cluster.qualify.comparing import NEWEST_PAST
from longhaul.cluster.qualify.outcome import Outcome
from longhaul.cluster.qualify.records import Check, Report, unfit_nodes
from longhaul.core.units import Bytes, Seconds
from longhaul.supervise.nodes.ledger import NodeEvent, concerning, cordons
from longhaul.supervise.nodes.reputation import failures_per_day

FAILED = "failed"
"""Key of a cordon's data: names of the checks that led to it."""
QUICK = "quick"
"""Key of a cordon's data: whether the battery was a quick one."""
BATTERY = "battery"
"""Key of a probe's data that tells the battery from the short probe."""
WHO = "longhaul qualify"
_MOST_FIGURES: Bytes = 2500
"""A line of the ledger is one write of less than a page."""


def past_of(
    reports: Iterable[Report], events: Sequence[NodeEvent]
) -> dict[str, dict[str, list[float]]]:
    """Node → figure → what batteries found before, the newest last; what they flagged is not in
    the ledger.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for report in reports:
        own: dict[str, list[float]] = {}
        for event in concerning(report.node, events):
            figures = event.data.get(BATTERY)
            for name, value in figures.items() if isinstance(figures, dict) else ():
                if isinstance(value, int | float):
                    own.setdefault(str(name), []).append(float(value))
        found[report.host] = {name: values[-NEWEST_PAST:] for name, values in own.items()}
    return found


def events_of(outcome: Outcome, before: Sequence[NodeEvent]) -> list[NodeEvent]:
    """What an outcome adds to the ledger: a probe of each node, and cordons or their end."""
    # A folder is no node: what is wrong with storage keeps no node out.
    own = [check for check in outcome.checks if check.group != "storage"]
    unfit = unfit_nodes(own)
    active = cordons(before)
    found: list[NodeEvent] = []
    for node in outcome.nodes:
        parts, why = tuple(node.parts), unfit.get(node.host, "")
        figures = _figures([check for check in outcome.checks if check.node == node.host])
        found.append(
            NodeEvent(
                kind="probed", parts=parts, host=node.host, time=outcome.time,
                passed=not why, reason=why, data={BATTERY: figures},
            )
        )  # fmt: skip
        bad = [part for part in parts if part in active]
        about = [check for check in own if check.node == node.host]
        if why and not bad:
            failed = sorted({check.name for check in about if check.verdict == "fail"})
            data = {FAILED: failed, QUICK: outcome.quick}
            found.append(
                NodeEvent(
                    kind="cordoned", parts=parts, host=node.host, time=outcome.time, reason=why,
                    who=WHO, data=data,
                )
            )  # fmt: skip
        made_good = tuple(
            part
            for part in bad
            if active[part].who == WHO and _makes_good(outcome, about, active[part])
        )
        if not why and made_good:
            found.append(
                NodeEvent(
                    kind="released", parts=made_good, host=node.host, time=outcome.time, who=WHO,
                    reason="it has passed the battery",
                )
            )  # fmt: skip
    return found


def _makes_good(outcome: Outcome, about: Sequence[Check], cordon: NodeEvent) -> bool:
    """Whether what led to a cordon was looked at again, as long, and found right."""
    failed, was_quick = cordon.data.get(FAILED), cordon.data.get(QUICK, False)
    if outcome.quick and not was_quick:
        return False
    passed = {check.name for check in about if check.verdict in ("pass", "warn")}
    return isinstance(failed, list) and set(failed) <= passed


def _figures(checks: Iterable[Check]) -> dict[str, float]:
    """What belongs to a node's history: no flagged value, and pairs only as long as they fit."""
    kept: dict[str, float] = {}
    size = 0
    for check in sorted(checks, key=lambda check: check.name.startswith("pair ")):
        if check.value is None or check.verdict in ("warn", "fail"):
            continue
        value = float(f"{check.value:.4g}")
        size += len(json.dumps({check.key: value}).encode())
        if size > _MOST_FIGURES:
            break
        kept[check.key] = value
    return kept


def expected_failures(
    reports: Sequence[Report], events: Sequence[NodeEvent], now: Seconds
) -> float | None:
    """Failures in a day of all these nodes; None if the ledger has seen none of them at work."""
    nodes = {report.host: report.node for report in reports}.values()
    if not any(e.kind in ("joined", "failed") for node in nodes for e in concerning(node, events)):
        return None
    return sum(failures_per_day(node, events, now) for node in nodes)


def response_times(events: Sequence[NodeEvent]) -> tuple[Seconds, ...]:
    """From each cordon to the release of the same part: how long a provider, or an owner, took to
    give back something that works. Parts of one cordon count once.
    """
    since: dict[str, Seconds] = {}
    found: dict[tuple[Seconds, Seconds], Seconds] = {}
    for event in events:
        for part in event.parts:
            if event.kind == "cordoned":
                since.setdefault(part, event.time)
            elif event.kind == "released" and part in since:
                began = since.pop(part)
                found[began, event.time] = event.time - began
    return tuple(found.values())
