"""What follows for nodes from what was seen of them: pure judgement, each with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from longhaul.core.units import Seconds
from longhaul.supervise.nodes.ledger import Node, NodeEvent, concerning, cordons
from longhaul.supervise.restart import DAY_S

_HALF_LIFE_S: Seconds = 30 * DAY_S
"""A failure counts half as much a month later: parts are replaced, drivers repaired."""
_PRIOR_FAILURES = 0.5
_PRIOR_DAYS = 30.0
"""A node of which nothing is known counts as one that fails every two months (Llama 3: 419
failures of 2,048 nodes in 54 days, one per node in 264 days; young clusters are worse)."""
_PROBE_AGAIN_S: Seconds = 7 * DAY_S
_BAD_RATE = 3.0
"""Times the prior's failure rate from which a node is probed before every use."""
_FRESH_S: Seconds = 600.0
"""A use follows its probe within this time, if other nodes are probed after it."""

CORRECTED_PER_HOUR = 60.0
"""Corrected errors in an hour from which a node is drained. Healthy memory corrects a few a day;
OPT-175B lost five days to nodes whose counts had been rising for hours (12.17 to 12.34)."""
_CORRECTED_WINDOW_S: Seconds = 3600.0
PROVEN_STEPS = 100
"""Steps after which a node that joined is a newcomer no more."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a node may join."""

    verdict: Literal["take", "probe", "refuse"]
    """`probe`: only after it has passed one."""
    reason: str


@dataclass(frozen=True, slots=True)
class WorldSpan:
    """The nodes of one attempt, and how far it came."""

    nodes: tuple[Node, ...]
    steps_made: int
    hung: bool = False
    """It ended because a rank did not arrive."""


def refusal(node: Node, events: Sequence[NodeEvent]) -> str:
    """Why a node must not join any world: a part of it is cordoned; else nothing (incident M8)."""
    active = cordons(events)
    bad = [part for part in node.parts if part in active] if active else []
    if not bad:
        return ""
    part = min(bad)
    event = active[part]
    known = f", then called {event.host}" if event.host != node.host else ""
    return f"{node.host} has {part}, which was cordoned{known}: {event.reason}"


def admit(node: Node, events: Sequence[NodeEvent], now: Seconds) -> Admission:
    """Whether a node may join a world (incidents M8, M12)."""
    if said := refusal(node, events):
        return Admission("refuse", said)
    own = concerning(node, events)
    probes = [event for event in own if event.kind == "probed"]
    if not probes:
        return Admission("probe", f"{node.host} has never been probed")
    if not probes[-1].passed:
        return Admission("probe", f"{node.host} failed its last probe: {probes[-1].reason}")
    since = [e for e in own if e.kind == "failed" and e.time > probes[-1].time]
    if since:
        return Admission("probe", f"{node.host} has failed since its last probe: {since[-1].cause}")
    if any(event.kind == "released" and event.time > probes[-1].time for event in own):
        return Admission("probe", f"{node.host} has been released since its last probe")
    if now - probes[-1].time > _PROBE_AGAIN_S:
        return Admission("probe", f"{node.host} was last probed more than a week ago")
    rate = failures_per_day(node, events, now) / (_PRIOR_FAILURES / _PRIOR_DAYS)
    # The probe that it has just passed is the one before this use: another would have no end.
    if rate >= _BAD_RATE and now - probes[-1].time > _FRESH_S:
        return Admission("probe", f"{node.host} fails {rate:.1f} times as often as a usual node")
    return Admission("take", f"{node.host} has passed its probe and has not failed since")


def failures_per_day(node: Node, events: Sequence[NodeEvent], now: Seconds) -> float:
    """Expected failures of a node in a day of use, older ones counting less.

    (prior + Σ failures) / (prior + Σ days used), both halved for each month since.
    """
    failures, days = _PRIOR_FAILURES, _PRIOR_DAYS
    joined: Seconds | None = None
    for event in concerning(node, events):
        if event.kind == "failed":
            failures += _faded(event.time, now)
        if event.kind == "joined":
            joined = event.time if joined is None else joined
        elif event.kind in ("left", "failed") and joined is not None:
            days += (event.time - joined) / DAY_S * _faded(event.time, now)
            joined = None if event.kind == "left" else event.time
    if joined is not None:
        days += max(0.0, now - joined) / DAY_S
    return failures / days


def by_reliability(nodes: Sequence[Node], events: Sequence[NodeEvent], now: Seconds) -> list[Node]:
    """The nodes that are not refused, the most reliable first (incident M12); equals in order."""
    fit = [node for node in nodes if not refusal(node, events)]
    return sorted(fit, key=lambda node: failures_per_day(node, events, now))


def after_corrected_errors(node: Node, events: Sequence[NodeEvent], now: Seconds) -> str:
    """Why a node is drained whose memory corrects too many errors (incident M7); else nothing."""
    count = sum(
        event.count
        for event in concerning(node, events)
        if event.kind == "corrected" and now - _CORRECTED_WINDOW_S < event.time <= now
    )
    said = f"{node.host} corrected {count} memory errors within an hour"
    return f"{said}; it leaves at the next checkpoint" if count >= CORRECTED_PER_HOUR else ""


def after_hang(
    worlds: Sequence[WorldSpan], named: Node | None = None
) -> tuple[tuple[Node, ...], str]:
    """The newcomers to whom a hang is put down, if any, and why (incident M9): the world before
    trained, this one hung before it had proven itself, and nodes are all that differs.

    `worlds`: the attempts of this run, the last one just ended. `named`: the node of the rank that
    did not arrive. A newcomer may make others hang, so it decides only among several newcomers.
    """
    sound = [world for world in worlds[:-1] if world.steps_made >= PROVEN_STEPS]
    if not sound or not worlds[-1].hung or worlds[-1].steps_made >= PROVEN_STEPS:
        return (), ""
    proven = frozenset().union(*(node.parts for node in sound[-1].nodes))
    newcomers = tuple(node for node in worlds[-1].nodes if not node.shares(proven))
    if not newcomers:
        return (), ""
    if named in newcomers:
        newcomers = (named,)
    hosts = ", ".join(node.host for node in newcomers)
    reason = (
        f"the world without {hosts} made {sound[-1].steps_made} steps; "
        f"with {'it' if len(newcomers) == 1 else 'them'} it hung after {worlds[-1].steps_made}"
    )
    return newcomers, reason


def _faded(time: Seconds, now: Seconds) -> float:
    return float(0.5 ** (max(0.0, now - time) / _HALF_LIFE_S))
