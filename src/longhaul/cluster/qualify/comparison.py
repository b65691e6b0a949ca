"""Two qualified clusters side by side: what a dollar buys, and how much of it training gets."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from longhaul.cluster.qualify.outcome import Outcome
from longhaul.cluster.qualify.records import SEVERITY, Check
from longhaul.core.units import Seconds, short_seconds
from longhaul.store.save_interval import PRIOR_S, daly_interval

RESTART_S: Seconds = 300.0
"""From a failure to the first step after it, beside the steps made again (assumed)."""
DAY_S: Seconds = 86_400.0


@dataclass(frozen=True, slots=True)
class Goodput:
    """The share of time that goes into steps which count."""

    share: float
    basis: str
    """Whence failures and save time come."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison."""

    title: str
    cells: tuple[str, ...]
    better: int | None = None
    """Which column is; None: neither, or it cannot be told."""


def goodput(outcome: Outcome) -> Goodput | None:
    """1 − saving − (half an interval + restart) for each failure; None without a save's time.

    At the interval of Daly; a save is waited for, which asynchronous saves need not be.
    """
    if not outcome.save_s:
        return None
    if outcome.failures_per_day is None:
        mean_s, basis = PRIOR_S / max(1, outcome.devices), "failures assumed"
    else:
        mean_s, basis = DAY_S / outcome.failures_per_day, "failures of the ledger"
    interval = max(outcome.save_s, daly_interval(outcome.save_s, mean_s))
    saving = outcome.save_s / (interval + outcome.save_s)
    lost = (interval / 2 + RESTART_S) / mean_s
    return Goodput(max(0.0, (1 - saving) * (1 - lost)), basis)


def weakest(outcome: Outcome) -> Check | None:
    """The check that failed, else the one that warned; None if all is well."""
    found = [check for check in outcome.checks if check.verdict in ("warn", "fail")]
    return max(found, key=lambda check: SEVERITY.index(check.verdict), default=None)


def compare(outcomes: Sequence[Outcome], prices: Sequence[float]) -> list[Row]:
    """The rows of the table; `prices`: dollars for a device and an hour, none or one for each."""
    usable = [outcome.usable for outcome in outcomes]
    good = [goodput(outcome) for outcome in outcomes]
    rows = [
        _row("verdict", [outcome.sentence() for outcome in outcomes]),
        _numbers("devices", [float(outcome.devices) for outcome in outcomes], "{:.0f}", best=None),
        _numbers("usable TFLOP/s", [_scaled(value, 1e-12) for value in usable], "{:,.3g}"),
        _numbers("slowest link, GB/s", [_slowest(outcome) for outcome in outcomes], "{:.3g}"),
        _numbers("time of a save, s", [o.save_s for o in outcomes], "{:.3g}", best=min),
        _numbers("expected goodput", [one.share if one else None for one in good], "{:.1%}"),
    ]
    if prices:
        hourly = [price * o.devices for price, o in zip(prices, outcomes, strict=True)]
        per_dollar = [
            None if value is None or not paid else value * 3600 / paid * 1e-18
            for value, paid in zip(usable, hourly, strict=True)
        ]
        rows.append(_numbers("usable EFLOP for a dollar", per_dollar, "{:,.4g}"))
        both = [
            None if value is None or one is None else value * one.share
            for value, one in zip(per_dollar, good, strict=True)
        ]
        rows.append(_numbers("of it in steps that count", both, "{:,.4g}"))
    rows.append(_row("goodput's basis", [one.basis if one else "no save's time: name a RECIPE"
                                         for one in good]))  # fmt: skip
    rows.append(_row("weakest part", [_said(weakest(outcome)) for outcome in outcomes]))
    rows.append(_row("provider's response", [_response(o.response_s) for o in outcomes]))
    return rows


def _slowest(outcome: Outcome) -> float | None:
    return _scaled(min(outcome.rates.values(), default=None), 1e-9)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _said(check: Check | None) -> str:
    if check is None:
        return "none: nothing failed or warned"
    where = " ".join(filter(None, (check.node, check.device)))
    return f"{check.verdict}: {check.name}{f' ({where})' if where else ''}: {check.reason}"


def _response(seconds: Sequence[Seconds]) -> str:
    if not seconds:
        return "no cordon of its ledger has ended"
    middle, longest = statistics.median(seconds), max(seconds)
    return f"median {short_seconds(middle)}, longest {short_seconds(longest)}, of {len(seconds)}"


def _row(title: str, cells: Sequence[str]) -> Row:
    return Row(title, tuple(cells))


def _numbers(
    title: str, values: Sequence[float | None], form: str, best: object = max
) -> Row:  # fmt: skip
    cells = tuple("–" if value is None else form.format(value) for value in values)
    known = [value for value in values if value is not None]
    if best is None or len(known) < len(values) or len(set(known)) < 2:
        return Row(title, cells)
    wanted = min(known) if best is min else max(known)
    return Row(title, cells, values.index(wanted))
