"""Verdicts on compute and memory, from what all ranks have measured. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence

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
from longhaul.cluster.qualify.records import Check, Measurement, Report
from longhaul.core.devices import Device, device_of_driver

_GPU = Limits(warn=0.95, fail=0.85)
"""Against neighbours. Assumed: GPUs of one kind in one room differ by a few per cent; one that is
15 % behind holds up a whole job, as all wait for the slowest."""
_CORE = Limits(warn=0.8, fail=0.7)
"""Of a core's speed in its own time, which stays within 3 % on a busy machine; but two threads of
one core (SMT) take turns at its units."""
_COPY = Limits(warn=0.4, fail=0.4, past_fail=0.3)
"""Of a core's copies: all cores share the memory, so that neighbours slow them."""
_LEAST_TIME = Limits(warn=0.15, fail=0.15)
"""Of a core's time, at the best moments of either half. Machines that others share leave a process
a third of a core at such moments (measured with eight busy processes on two cores); one that never
gets a seventh has neighbours that never rest."""
_TABLE = Limits(warn=0.85, fail=0.70)
"""Against the best product of the table: that is over shapes, ours is one shape (8192³)."""
_PEAK = Limits(warn=0.60, fail=0.50)
"""Against the dense peak, where the table has no best product: the worst of those it has, MI300X,
reaches 51 % of its peak."""
_MEMORY_TABLE = Limits(warn=0.80, fail=0.70)
"""A copy reaches 85 to 93 % of the data sheet's rate on HBM (assumed)."""
_KEPT_GPU, _KEPT_CORE = Limits(warn=0.95, fail=0.85), Limits(warn=0.8, fail=0.7)
"""Of the first half's speed, in the second half."""
_SLOW = (
    "end what else runs on the device; look at its clocks, power limit and cooling "
    "(nvidia-smi -q -d PERFORMANCE); exchange the node if it stays slow"
)
_BITS = "take the node out of use and return it: wrong bits cannot be trained around"
_MEMORY = "take the node out of use and have its memory tested or exchanged"
_BUSY = "end what else runs there (top, nvidia-smi), or have the node to yourself"
_KEPT = "look at cooling and power: the device slows under load"


def judge_devices(reports: Sequence[Report], past: Past) -> Iterator[Check]:
    """Verdicts on every measurement of the groups `compute` and `memory`."""
    for report in reports:
        for one in report.measurements:
            if one.group not in ("compute", "memory"):
                continue
            if one.name.startswith("product "):
                yield _product(reports, past, report, one)
            elif one.name == "memory rate":
                yield _memory_rate(reports, past, report, one)
            elif one.name == "sustained":
                yield _sustained(report, one)
            elif one.name == "core time":
                yield _core_time(report, one)
            elif one.name == "same bits":
                yield _same_bits(reports, report, one)
            elif one.name == "ecc":
                yield _ecc(report, one)
            else:
                yield plain(report, one, _MEMORY, "every pattern is read back")


def _product(reports: Sequence[Report], past: Past, report: Report, one: Measurement) -> Check:
    is_gpu = one.device.startswith("cuda")
    limits = _GPU if is_gpu else _CORE
    references = [
        _table_product(device_of_driver(report.hardware), str(one.facts.get("format", ""))),
        _beside(reports, report, one, limits),
        _before(past, report, one, limits),
    ]
    return judged(report, one, references, _SLOW, explanation(one))


def explanation(one: Measurement) -> str:
    """Why a device is slow, as far as its driver tells; a core is timed without its neighbours."""
    if said := str(one.facts.get("driver", "")):
        return f"its driver names {said}"
    return "" if one.device.startswith("cuda") else "in its own time: its clock is low"


def _table_product(device: Device | None, kind: str) -> Reference | None:
    if device is None:
        return None
    for name, best in device.best_product.items():
        if name == kind:
            what = f"best product of {device.key}"
            return Reference(best, what, device.source_of("best_product"), _TABLE)
    for name, peak in device.peak.items():
        if name == kind:
            return Reference(peak, f"peak of {device.key}", device.source_of("peak"), _PEAK)
    return None


def _beside(
    reports: Sequence[Report], report: Report, one: Measurement, limits: Limits
) -> Reference | None:
    if one.value is None:
        return None
    return neighbours(one.value, same_elsewhere(reports, report, one), limits)


def _before(past: Past, report: Report, one: Measurement, limits: Limits) -> Reference | None:
    return history(past.get(report.host, {}).get(f"{one.name}@{one.device}", ()), limits)


def _memory_rate(reports: Sequence[Report], past: Past, report: Report, one: Measurement) -> Check:
    is_gpu = one.device.startswith("cuda")
    limits = _GPU if is_gpu else _COPY
    device = device_of_driver(report.hardware)
    table = None
    if device is not None:
        what = f"data sheet of {device.key}"
        source = device.source_of("memory_rate")
        table = Reference(device.memory_rate, what, source, _MEMORY_TABLE)
    references = [table, _beside(reports, report, one, limits), _before(past, report, one, limits)]
    return judged(report, one, references, _SLOW)


def _sustained(report: Report, one: Measurement) -> Check:
    limits = _KEPT_GPU if one.device.startswith("cuda") else _KEPT_CORE
    whole = Reference(1.0, "the first half", "measured in this battery", limits)
    return judged(report, one, [whole], _KEPT, explanation(one))


def _core_time(report: Report, one: Measurement) -> Check:
    own = Reference(1.0, "a core of its own", "assumed: see docs/qualify.md", _LEAST_TIME)
    return judged(report, one, [own], _BUSY, "another process is busy there all the time")


def _same_bits(reports: Sequence[Report], report: Report, one: Measurement) -> Check:
    """Right by itself, and the same as on most devices of the same kind."""
    expected = "the exact product of whole numbers, and the same bits each time on every device"
    if one.wrong or one.skipped:
        return plain(report, one, _BITS, expected)
    digests = Counter(
        str(other.facts["digest"])
        for each in reports
        if each.hardware == report.hardware
        for other in each.measurements
        if other.name == one.name and "digest" in other.facts
    )
    own = str(one.facts.get("digest", ""))
    usual, times = digests.most_common(1)[0] if digests else (own, 1)
    if own == usual or times <= digests[own]:
        return plain(report, one, _BITS, expected)
    why = f"{one.device} gives other bits than {times} devices of its kind"
    return made(report, one, "fail", expected=expected, reason=why, remedy=_BITS)


def _ecc(report: Report, one: Measurement) -> Check:
    """Corrected errors during the battery are a warning: healthy memory corrects a few a day."""
    expected = "no error was lost, and none was corrected during the battery"
    if one.wrong or one.skipped or not one.value:
        return plain(report, one, _MEMORY, expected)
    why = f"{one.value:.0f} errors were corrected during the battery"
    watch = "`longhaul nodes` counts them: 60 in an hour drain the node"
    return made(report, one, "warn", expected=expected, reason=why, remedy=watch)
