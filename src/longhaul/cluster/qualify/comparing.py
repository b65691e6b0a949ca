"""Whether a figure is as it should be: against the table of known devices, against its neighbours,
against its own history. Pure; each answer says what it was compared with.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from longhaul.cluster.qualify.records import SEVERITY, Check, Measurement, Report, Verdict

FEWEST_PAST = 3
"""Earlier figures without which a history says nothing: one may have been a bad day."""
NEWEST_PAST = 10
MAD_TO_SIGMA = 1.4826
"""Of a normal distribution: P. J. Rousseeuw and C. Croux, JASA 88 (1993)."""
_MOST_SIGMA = 6.0
"""Beyond which a figure is no more part of its own history: the usual 3 is passed too often by
machines that several programs share."""

Past = Mapping[str, Mapping[str, Sequence[float]]]
"""Node → name of a figure → its earlier values, the newest last."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Shares of a reference below which a figure is a warning, or a failure."""

    warn: float
    fail: float
    lower_is_better: bool = False
    """A time: its reference is divided by it."""
    past_fail: float | None = None
    """Of its own history; `fail` when absent."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Something that a figure is compared with."""

    value: float
    what: str
    source: str
    limits: Limits

    def verdict(self, value: float) -> Verdict:
        """Of a figure."""
        share = self.share(value)
        if share < self.limits.fail:
            return "fail"
        return "warn" if share < self.limits.warn else "pass"

    def share(self, value: float) -> float:
        """How much of the reference a figure reaches; 1 is all of it."""
        if self.limits.lower_is_better:
            return self.value / value if value > 0 else float("inf")
        return value / self.value if self.value > 0 else float("inf")

    def expected(self, unit: str) -> str:
        """In words."""
        limits = self.limits
        bar = self.value / limits.fail if limits.lower_is_better else self.value * limits.fail
        side = "at most" if limits.lower_is_better else "at least"
        return f"{side} {figure(bar, unit)} ({self.what}: {figure(self.value, unit)})"


def figure(value: float | None, unit: str) -> str:
    """A number with its unit, as people read them."""
    if value is None:
        return "–"
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit in ("FLOP/s", "B/s", "B") and abs(value) >= scale:
            return f"{value / scale:.4g} {prefix}{unit}"
    if unit == "share":
        return f"{value:.0%}"
    if unit == "s" and 0 < abs(value) < 1:
        small = abs(value) < 1e-3
        return f"{value * 1e6:.3g} µs" if small else f"{value * 1e3:.3g} ms"
    return f"{value:.4g} {unit}".rstrip()


def spread(values: Sequence[float]) -> float:
    """Robust standard deviation: the scaled median distance to the median."""
    middle = statistics.median(values)
    return MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values)


def neighbours(own: float, others: Sequence[float], limits: Limits) -> Reference | None:
    """The median of the same figure elsewhere; with one other, that one if it is better: of two
    that differ the worse is suspected.
    """
    if not others:
        return None
    middle = statistics.median(others)
    what = f"median of {len(others)} others" if len(others) > 1 else "the other one"
    return Reference(middle, what, "measured beside it, in this battery", limits)


def history(values: Sequence[float], limits: Limits) -> Reference | None:
    """The figure's own past; None while it is too short, or as wide as the limit itself."""
    newest = [value for value in values if value > 0][-NEWEST_PAST:]
    if len(newest) < FEWEST_PAST:
        return None
    middle = statistics.median(newest)
    fail = limits.fail if limits.past_fail is None else limits.past_fail
    # A figure that has always varied may vary: the bar is never inside its own spread.
    wide = _MOST_SIGMA * spread(newest)
    inside = (
        middle / (middle + wide) if limits.lower_is_better else max(0.0, (middle - wide) / middle)
    )
    bar = min(fail, inside) if wide else fail
    if bar <= 0:
        return None
    own = Limits(min(limits.warn, bar), bar, limits.lower_is_better)
    return Reference(middle, f"median of {len(newest)} earlier", "the node ledger", own)


def judged(
    report: Report, one: Measurement, references: Iterable[Reference | None], remedy: str,
    explanation: str = "",
) -> Check:  # fmt: skip
    """The check of a measurement: the worst of its comparisons, named with its reference."""
    there = [reference for reference in references if reference is not None]
    if one.wrong or one.skipped or one.value is None:
        return plain(report, one, remedy)
    if not there:
        why = "nothing to compare with: no row in the table, no neighbour, no history yet"
        return made(report, one, "not applicable", reason=why)
    weighed = [(SEVERITY.index(r.verdict(one.value)), -r.share(one.value), r) for r in there]
    binding = max(weighed, key=lambda each: each[:2])[2]
    verdict = binding.verdict(one.value)
    reason = f"{binding.share(one.value):.0%} of what was expected"
    if verdict != "pass":
        where = f" of {one.device}" if one.device else ""
        compared = f"{binding.what}: {figure(binding.value, one.unit)}"
        reason = f"{one.name}{where} is {figure(one.value, one.unit)}; {compared}"
        reason += f"; {explanation}" if explanation else ""
    return made(
        report, one, verdict, expected=binding.expected(one.unit), source=binding.source,
        reason=reason, remedy=remedy if verdict != "pass" else "",
    )  # fmt: skip


def plain(report: Report, one: Measurement, remedy: str = "", expected: str = "") -> Check:
    """The check of what is right or wrong by itself."""
    if one.skipped:
        return made(report, one, "not applicable", reason=one.skipped)
    if one.wrong:
        return made(report, one, "fail", expected=expected, reason=one.wrong, remedy=remedy)
    return made(report, one, "pass", expected=expected)


def made(
    report: Report, one: Measurement, verdict: Verdict, *, expected: str = "", source: str = "",
    reason: str = "", remedy: str = "",
) -> Check:  # fmt: skip
    """A check of a measurement with this verdict."""
    return Check(
        group=one.group, name=one.name, node=report.host, device=one.device, verdict=verdict,
        value=one.value, unit=one.unit, expected=expected, source=source, reason=reason,
        remedy=remedy,
    )  # fmt: skip


def same_elsewhere(
    reports: Sequence[Report], report: Report, one: Measurement, *, any_device: bool = True
) -> list[float]:
    """The same figure of other devices of the same hardware, in this battery; without
    `any_device` only of the device of the same name on other nodes.
    """
    return [
        other.value
        for each in reports
        if each.hardware == report.hardware
        for other in each.measurements
        if other.name == one.name and other.value is not None and other is not one
        and (any_device or (other.device == one.device and each.host != report.host))
    ]  # fmt: skip
