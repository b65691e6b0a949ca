"""Verdicts on storage and hosts: the folder's medium, equal versions, limits, clocks. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from longhaul.cluster.qualify.comparing import (
    Limits,
    Past,
    Reference,
    history,
    judged,
    made,
    neighbours,
    plain,
    same_elsewhere,
)
from longhaul.cluster.qualify.records import Check, Measurement, Report, Verdict

_FLOORS: dict[str, tuple[float, str]] = {
    "write": (50e6, "assumed: half of what one hard disk writes in a row"),
    "read": (50e6, "assumed: half of what one hard disk reads in a row"),
    "several writers": (50e6, "assumed: as one writer; a medium must not break down under four"),
    "small files": (50.0, "assumed: 10,000 files of an environment in three minutes"),
    "metadata": (100.0, "assumed: two operations for each small file"),
}
"""Below which training waits for a medium, whatever it is."""
_CEILINGS: dict[str, tuple[float, str]] = {
    "fsync": (
        0.1,
        "assumed: ten times one turn of a hard disk; the journal waits for it each step",
    ),
    "import torch": (60.0, "assumed: a start of 1,000 ranks that takes a minute is felt"),
    "remote tier": (15.0, "assumed: a store that is well answers within seconds"),
}
_FLOOR, _CEILING = Limits(1.0, 1.0), Limits(1.0, 1.0, lower_is_better=True)
_BESIDE = Limits(warn=0.1, fail=0.1)
"""A medium that several share may serve one of them at a tenth for a second, and is not broken."""
_BESIDE_TIME = Limits(warn=0.05, fail=0.05, lower_is_better=True)
_MOST_SAVING = 0.1
"""Share of time that saves may take at the best interval: beyond, another medium pays."""

_DISK = "use another file system for runs, or ask the provider for its limits (IOPS, throughput)"
_SPACE = "free space there, or name a larger one with --folder"
_REMOTE = "look at the address, its credentials and the network to it"
_SKEW = "install the same image on all nodes, then qualify again"
_CLOCK = "start NTP or chrony on the node"
_IMPORT = "put the environment on a local disk or in the image, not on the shared file system"
_FILES = "raise it in the job's script: ulimit -n 65536"
_LOCKED = "ulimit -l unlimited, in the scheduler's service too: RDMA pins its buffers"
_SHARED = "start the container with --ipc=host or --shm-size=16g"
_NUMA = "let the scheduler give the job all NUMA nodes (Slurm: --exclusive, --cpus-per-task)"
_FAULT = "drain the node, reset its GPUs, and send the provider `longhaul evidence`"
_PCIE = "reseat or exchange the card; send the provider `longhaul evidence`"


def judge_storage(reports: Sequence[Report], past: Past) -> Iterator[Check]:
    """Verdicts on the group `storage`."""
    for report, one in _each(reports, "storage"):
        if one.name in ("space", "read back"):
            expected = "there is room, and what was written is read back"
            yield plain(report, one, _SPACE if one.name == "space" else _DISK, expected)
        elif one.name == "save" and one.value is not None:
            yield made(
                report, one, "pass", expected="see the interval below", reason="for the plan"
            )
        else:
            remedy = _REMOTE if one.name == "remote tier" else _DISK
            yield judged(report, one, _references(reports, past, report, one), remedy)


def judge_hosts(reports: Sequence[Report], past: Past) -> Iterator[Check]:
    """Verdicts on the group `host`."""
    yield from skew(reports)
    for report, one in _each(reports, "host"):
        if one.name == "import torch":
            yield judged(report, one, _references(reports, past, report, one), _IMPORT)
        elif one.name == "clock" and one.value is not None:
            yield _clock(report, one)
        elif one.name in _LEAST:
            yield _limit(report, one)
        elif one.name == "numa placement" and not one.skipped:
            yield _numa(report, one)
        elif one.name != "versions":
            remedy = _PCIE if one.name == "pcie" else _FAULT
            yield plain(report, one, remedy, "none since the boot")


def _each(reports: Sequence[Report], group: str) -> Iterator[tuple[Report, Measurement]]:
    for report in reports:
        for one in report.measurements:
            if one.group == group:
                yield report, one


def _references(
    reports: Sequence[Report], past: Past, report: Report, one: Measurement
) -> list[Reference | None]:
    """A floor that holds for every medium, the same figure on other nodes, its own history."""
    found: list[Reference | None] = []
    lower = one.unit == "s"
    ample = one.name in _FLOORS and (one.value or 0.0) > _AMPLE * _FLOORS[one.name][0]
    bars = _BESIDE_TIME if lower else _BESIDE
    if one.name in _FLOORS:
        value, why = _FLOORS[one.name]
        found.append(Reference(value, "least that is usable", why, _FLOOR))
    if one.name in _CEILINGS:
        value, why = _CEILINGS[one.name]
        found.append(Reference(value, "most that is usable", why, _CEILING))
    if one.value is not None and not ample and not (lower and one.value < _NO_WAIT_S):
        others = same_elsewhere(reports, report, one, any_device=False)
        found.append(neighbours(one.value, others, bars))
        key = f"{one.name}@{one.device}" if one.device else one.name
        found.append(history(past.get(report.host, {}).get(key, ()), bars))
    return found


_AMPLE = 10.0
"""Times the floor beyond which nobody waits for a medium, however much faster another one is."""
_NO_WAIT_S = 0.01
"""A time below it is no wait, however much smaller another one is."""


def skew(reports: Sequence[Report]) -> Iterator[Check]:
    """One check for each version: the nodes that have another one than most are named."""
    told = {report.host: one.facts for report, one in _each(reports, "host")
            if one.name == "versions"}  # fmt: skip
    if not told:
        return
    expected = "equal on all nodes"
    for fact in sorted({fact for facts in told.values() for fact in facts}):
        values = {node: _text(facts.get(fact)) for node, facts in told.items()}
        counted = Counter(values.values()).most_common()
        if len(counted) == 1:
            continue
        usual = counted[0][0] if counted[0][1] > counted[1][1] else None
        for node, value in values.items():
            if value == usual:
                continue
            most = f"{counted[0][1]} of {len(values)} nodes have {usual}"
            others = "; ".join(f"{other} has {held}" for other, held in values.items()
                               if other != node)  # fmt: skip
            yield Check(
                group="host", name=f"version of {fact}", node=node, verdict="fail",
                expected=expected, source="the other nodes",
                reason=f"{node} has {fact} {value}; {most if usual is not None else others}",
                remedy=_SKEW,
            )  # fmt: skip
    if len(told) == 1:
        yield Check(group="host", name="versions", node=next(iter(told)), expected=expected,
                    verdict="not applicable", reason="there is one node")  # fmt: skip
    else:
        yield Check(group="host", name="versions", node="", expected=expected, verdict="pass",
                    reason=f"{len(next(iter(told.values())))} facts compared", value=len(told),
                    unit="nodes")  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "nothing" if value in (None, "") else str(value)


def _clock(report: Report, one: Measurement) -> Check:
    """A second is where journals of several nodes can no longer be read side by side."""
    offset, uncertain = float(one.value or 0.0), float(one.facts["uncertain_s"])
    verdict: Verdict = "pass"
    if offset - uncertain > 0.1:
        verdict = "fail" if offset - uncertain > 1.0 else "warn"
    reason = f"{report.host}'s clock is {offset:.3g} s (± {uncertain:.2g} s) from rank 0's"
    return made(report, one, verdict, expected="at most 1 s; from 0.1 s on a warning",
                source="assumed: journals of all nodes are read side by side",
                reason=reason, remedy="" if verdict == "pass" else _CLOCK)  # fmt: skip


_LEAST: dict[str, tuple[float, str, str]] = {
    "open files": (1024.0, _FILES, "assumed: a socket for each other rank, and the shards"),
    "locked memory": (2.0**60, _LOCKED, "NCCL user guide, troubleshooting: memlock unlimited"),
    "shared memory": (float(1 << 30), _SHARED, "NCCL user guide, troubleshooting: shared memory"),
}


def _limit(report: Report, one: Measurement) -> Check:
    if one.skipped or one.value is None:
        return plain(report, one)
    least, remedy, source = _LEAST[one.name]
    if one.value >= least:
        return made(report, one, "pass", expected=f"at least {least:g} {one.unit}", source=source)
    reason = f"{one.name}: {one.value:g} {one.unit} where {least:g} are needed"
    return made(report, one, "warn", expected=f"at least {least:g} {one.unit}", source=source,
                reason=reason, remedy=remedy)  # fmt: skip


def _numa(report: Report, one: Measurement) -> Check:
    nodes = int(one.facts["nodes"])
    expected = f"all {nodes} NUMA nodes"
    if one.value == nodes:
        return made(report, one, "pass", expected=expected)
    reason = f"this process may use {one.value:.0f} of {nodes} NUMA nodes"
    return made(report, one, "warn", expected=expected, reason=reason, remedy=_NUMA)
