"""What a run costs and loses: days, money, energy, failures, spares, saves, goodput.

Every figure says whether it was measured, published or assumed; one that is computed from others
is as good as the weakest of them.
"""

import math
from dataclasses import dataclass

from longhaul.core.devices import Basis, Device
from longhaul.core.units import Bytes, Seconds
from longhaul.plan.failure_rates import LLAMA_3_405B, OPT_175B, PublishedRun
from longhaul.store.save_interval import daly_interval

OVERHEAD = 1.5
"""Assumed: power of hosts, network and cooling beside the boards, as a factor on them."""
RECOVERY_S: Seconds = 600.0
"""Assumed: to notice a failure, find its node, start on another, load a checkpoint."""
REPLACEMENT_S: Seconds = 86_400.0
"""Assumed: until a node that failed is back."""
SAVE_STALL_S: Seconds = 10.0
"""Assumed: what an asynchronous save costs the training thread; 6.3 s for 7B on PyTorch's
asynchronous checkpoint (docs/performance.md)."""
_CAUSES = 4
"""Listed by name, of those that are expected most."""
SPARES_CONFIDENCE = 0.95
_DAY: Seconds = 86_400.0
_ORDER: tuple[Basis, ...] = ("measured", "published", "assumed")


def weakest(*bases: Basis) -> Basis:
    """Whence a figure that was computed from others."""
    return max(bases, key=_ORDER.index)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a plan."""

    name: str
    value: float | None
    unit: str
    basis: Basis
    source: str = ""


def failures_of(device: Device) -> tuple[PublishedRun, Basis]:
    """The published run after whose failures those of `device` are counted: OPT-175B's for an
    A100, Llama 3's for an H100; for any other Llama 3's are assumed.
    """
    if device.key.startswith("a100"):
        return OPT_175B, "published"
    return LLAMA_3_405B, "published" if device.key.startswith("h100") else "assumed"


def bill(
    *,
    step_s: Seconds,
    steps: int | None,
    gpus: int,
    node_devices: int,
    power_w: float | None,
    price: float | None,
    checkpoint_bytes: Bytes,
    step_basis: Basis,
    failures: PublishedRun,
    failures_basis: Basis,
) -> list[Figure]:
    """The bill of `steps` steps of `step_s` seconds; None where the recipe sets no end.

    `price` is money for an hour of a GPU, `power_w` of a board at full load.
    """
    mean_s = failures.seconds_between(gpus)
    interval_s = daly_interval(SAVE_STALL_S, mean_s)
    good = goodput(mean_s, interval_s)
    rates = f"{failures.name}'s rates"
    spare_nodes = spares(_between_lasting(failures, gpus), gpus, node_devices)
    lines = [
        Figure("step time", step_s, "s", step_basis),
        Figure("goodput", good, "", "assumed", "failures, redone work, saves, recovery"),
        Figure("time between failures", mean_s / 3600, "h", failures_basis, rates),
        Figure("checkpoint size", checkpoint_bytes / 1e9, "GB", "published", "arithmetic"),
        Figure("checkpoint interval", interval_s / 60, "min", "assumed", "Young and Daly"),
        Figure("checkpoint interval", max(1, round(interval_s / step_s)), "steps", "assumed"),
        Figure("spare nodes", spare_nodes, "", "assumed",
               f"{SPARES_CONFIDENCE:.0%} sure, a node is back after {REPLACEMENT_S / 3600:.0f} h"),
    ]  # fmt: skip
    if steps is None:
        return lines
    training_s = steps * step_s
    wall_s = training_s / good
    hours = gpus * wall_s / 3600
    basis = weakest(step_basis, "assumed")
    lines += [
        Figure("steps", steps, "", "published", "the recipe"),
        _duration("training without failures", training_s, step_basis),
        _duration("wall time", wall_s, basis),
        Figure("GPU-hours", hours, "h", basis),
        Figure("failures expected", wall_s / mean_s, "", basis, rates),
        *_by_cause(failures, gpus, wall_s, weakest(basis, failures_basis)),
    ]
    if price is not None:
        lines.append(Figure("money", hours * price, "", basis, f"{price:g} for each GPU-hour"))
    if power_w is not None:
        energy = hours * power_w * OVERHEAD / 1e6
        lines.append(Figure("energy", energy, "MWh", basis, f"boards × {OVERHEAD:g} assumed"))
    return lines


def _duration(name: str, seconds: Seconds, basis: Basis) -> Figure:
    """Days, or hours where those are few."""
    if seconds < 2 * _DAY:
        return Figure(name, seconds / 3600, "h", basis)
    return Figure(name, seconds / _DAY, "days", basis)


def goodput(mean_s: Seconds, interval_s: Seconds, recovery_s: Seconds = RECOVERY_S) -> float:
    """Share of wall time that trains: without saves, redone work and recovery, 0 to 1.

    `mean_s` is the time between failures of all devices together. Of an interval between saves half
    is lost in a failure on average.
    """
    saving = SAVE_STALL_S / (interval_s + SAVE_STALL_S)
    lost = (recovery_s + interval_s / 2) / mean_s
    return (1 - saving) / (1 + lost)


def _by_cause(
    failures: PublishedRun, gpus: int, wall_s: Seconds, basis: Basis
) -> list[Figure]:  # fmt: skip
    """The causes that are expected most often."""
    most = sorted(failures.rates, key=lambda rate: -rate.per_gpu_day)[:_CAUSES]
    return [
        Figure(
            f"  {rate.cause}", rate.per_gpu_day * gpus * wall_s / _DAY, "", basis,
            "its share of the total is assumed" if rate.assumed else f"{failures.name}'s table",
        )
        for rate in most
    ]  # fmt: skip


def _between_lasting(failures: PublishedRun, gpus: int) -> Seconds:
    """Mean time between failures that take a node away."""
    return _DAY / (gpus * sum(rate.per_gpu_day for rate in failures.rates if rate.lasting))


def spares(mean_s: Seconds, gpus: int, node_devices: int) -> int:
    """Nodes to hold ready, so that more are missing in less than 5 % of the time (Poisson).

    `mean_s` is the time between failures that take a node of the run away.
    """
    if gpus <= node_devices:
        return 0
    expected = REPLACEMENT_S / mean_s
    term = total = math.exp(-expected)
    count = 0
    while total < SPARES_CONFIDENCE and count < 10_000:
        count += 1
        term *= expected / count
        total += term
    return count
