"""Matrix products of a device: their speed in windows over minutes, and whether the same product
gives the same bits each time. It runs on the node that it measures.
"""

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch

from longhaul.cluster.qualify.records import Measurement
from longhaul.core.devices import Format, device_of_driver
from longhaul.core.faults import Point, point
from longhaul.core.units import Seconds
from longhaul.supervise.nodes.qualify import Unfit, check_product, factors

_TYPES: dict[Format, torch.dtype] = {
    "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16,
    # MI300X alone has another float8; both have 4 bits of exponent and 3 of fraction.
    "fp8": torch.float8_e4m3fnuz if torch.version.hip else torch.float8_e4m3fn,
}  # fmt: skip
_SIDE_GPU, _SIDE_CORE = 8192, 192
"""Of square products: 1.1 TFLOP for a GPU; 14 MFLOP for a core, which its own caches hold."""
WINDOW_S: Seconds = 0.03
"""Of one look. A time slice of Linux is some milliseconds: a window of 30 ms shows what share of a
core this process gets."""
_ROUNDS = 8
"""In which all devices are looked at in turn, so that what disturbs one moment disturbs them all;
the first half against the second shows throttling."""
UPPER = 0.95
"""Quantile of the windows that stands for a device: what it does when least disturbs it."""
_MOST_CORES = 16
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Unit:
    """A device, or one core of the processor."""

    name: str
    device: torch.device
    core: int | None = None

    @contextmanager
    def bound(self) -> Iterator[None]:
        """Compute on this core alone, with one thread."""
        if self.core is None:
            yield
            return
        cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
        os.sched_setaffinity(0, {self.core})
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            os.sched_setaffinity(0, cores)


def units(local_rank: int | None = None) -> list[Unit]:
    """The GPUs of this process: all, or its own under a launcher; else cores, evenly chosen."""
    if torch.cuda.is_available():
        there = range(torch.cuda.device_count())
        mine = there if local_rank is None else [local_rank % len(there)]
        return [Unit(f"cuda:{number}", torch.device("cuda", number)) for number in mine]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) > _MOST_CORES:
        cores = cores[:: -(-len(cores) // _MOST_CORES)]
    cpu = torch.device("cpu")
    return [Unit(f"core {core}", cpu, core) for core in cores] or [Unit("cpu", cpu)]


def formats(unit: Unit) -> tuple[Format, ...]:
    """Whose speed is measured there; a core's float32 alone, as it has no matrix units to tell."""
    if unit.device.type != "cuda":
        return ("fp32",)
    known = device_of_driver(torch.cuda.get_device_name(unit.device))
    has_fp8 = known is not None and "fp8" in known.peak
    return ("bf16", "fp16", "tf32", "fp32", "fp8") if has_fp8 else ("bf16", "fp16", "tf32", "fp32")


@torch.no_grad()
def speeds(
    chosen: Sequence[Unit], seconds_each: Seconds, throttled: Callable[[Unit], str]
) -> list[Measurement]:
    """Rate of each format, and of the main one the share kept from the first half to the second.

    Args:
        chosen: what to measure.
        seconds_each: of the main format on each device; the others get a tenth.
        throttled: what a device's driver says of its clocks, asked under load.
    """
    found: list[Measurement] = []
    for place in range(max(len(formats(unit)) for unit in chosen)):
        main = place == 0
        refused: dict[Unit, str] = {}
        budget = seconds_each if main else max(0.5, seconds_each / 10)
        rates: dict[Unit, list[tuple[float, float]]] = {unit: [] for unit in chosen}
        said: dict[Unit, str] = {}
        for turn in range(_ROUNDS):
            for unit in chosen:
                kind = formats(unit)[place]
                if unit in refused:
                    continue
                with unit.bound():
                    try:
                        rates[unit] += _windows(unit, kind, budget / _ROUNDS, turn / _ROUNDS)
                    except (RuntimeError, ValueError) as error:
                        if kind != "fp8":
                            raise
                        refused[unit] = f"torch refuses it: {str(error).splitlines()[0][:120]}"
                        continue
                    said[unit] = throttled(unit) or said.get(unit, "")
        for unit in chosen:
            kind = formats(unit)[place]
            if unit in refused:
                found.append(Measurement(group="compute", name=f"product {kind}", device=unit.name,
                                         skipped=refused[unit]))  # fmt: skip
            else:
                found += _figures(unit, kind, rates[unit], said[unit], main)
    return found


def _figures(
    unit: Unit, kind: Format, rates: Sequence[tuple[float, float]], said: str, main: bool
) -> Iterator[Measurement]:
    """`rates`: of each window FLOP/s, and the share of its time that this thread had a core.

    A core's speed is counted in its own time, so that neither neighbours nor other tenants' load
    change it: with eight busy processes on two cores it stays within 3 %. They show in the share.
    """
    on_core = unit.core is not None
    speed = [rate / share if on_core else rate for rate, share in rates if share > 0]
    half = len(speed) // 2
    facts = {
        "median": statistics.median(speed), "worst": min(speed), "windows": len(speed),
        "driver": said, "format": kind,
    }  # fmt: skip
    yield Measurement(group="compute", name=f"product {kind}", device=unit.name,
                      value=upper(speed), unit="FLOP/s", facts=facts)  # fmt: skip
    if not main or not half:
        return
    kept = upper(speed[half:]) / upper(speed[:half])
    yield Measurement(group="compute", name="sustained", device=unit.name, value=kept,
                      unit="share", facts=facts)  # fmt: skip
    if on_core:
        halves = [upper([share for _, share in part]) for part in (rates[:half], rates[half:])]
        yield Measurement(group="compute", name="core time", device=unit.name, value=min(halves),
                          unit="share", facts={"halves": halves})  # fmt: skip


def upper(values: Sequence[float]) -> float:
    """What some values reach at their best, single ones aside."""
    return sorted(values)[round(UPPER * (len(values) - 1))]


def _windows(
    unit: Unit, kind: Format, budget_s: Seconds, so_far: float
) -> list[tuple[float, float]]:
    work, flops = _product_of(unit, kind)
    work = point(Point.PRODUCT_WINDOW, work, device=unit.name, so_far=so_far)
    work()
    _wait(unit)
    calls = 1
    rates: list[tuple[float, float]] = []
    until = time.perf_counter() + budget_s
    while not rates or time.perf_counter() < until:
        began, used = time.perf_counter(), time.thread_time()
        for _ in range(calls):
            work()
        _wait(unit)
        took = time.perf_counter() - began
        if took >= WINDOW_S / 2:
            rates.append((calls * flops / took, (time.thread_time() - used) / took))
        # A window that was disturbed must not shorten the next one for long.
        calls = max(1, round(calls * min(4.0, max(0.5, WINDOW_S / max(took, 1e-6)))))
    return rates


def _product_of(unit: Unit, kind: Format) -> tuple[Callable[[], object], float]:
    side = _SIDE_CORE if unit.device.type == "cpu" else _SIDE_GPU
    generator = torch.Generator(unit.device).manual_seed(17)
    a, b = (
        torch.randn(side, side, generator=generator, device=unit.device).to(_TYPES[kind])
        for _ in range(2)
    )
    if unit.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    if kind == "fp8":
        scale = torch.ones((), device=unit.device)
        # Its kernels want the second factor by columns.
        product = partial(torch._scaled_mm, a, b.t(), scale, scale, out_dtype=torch.bfloat16)
        return partial(product, use_fast_accum=unit.device.type == "cuda"), 2.0 * side**3
    return partial(torch.mm, a, b, out=torch.empty_like(a)), 2.0 * side**3


def _wait(unit: Unit) -> None:
    if unit.device.type == "cuda":
        torch.cuda.synchronize(unit.device)


@torch.no_grad()
def repeatability(chosen: Sequence[Unit]) -> list[Measurement]:
    """Whole numbers must give the one exact product; any numbers the same bits each time. `digest`
    is of those, to be compared with other devices of the same kind.
    """
    whole = [torch.tensor(each, dtype=torch.float32) for each in factors()]
    found = []
    for unit in chosen:
        facts: dict[str, str] = {}
        wrong = ""
        with unit.bound():
            here = [each.to(unit.device) for each in whole]
            try:
                check_product(partial(_bytes, unit, *here), unit.name)
            except Unfit as error:
                wrong = str(error)
            torch.manual_seed(17)
            a, b = (torch.randn(512, 512).to(unit.device) for _ in range(2))
            digests = {hashlib.sha256(_bytes(unit, a, b)).hexdigest() for _ in range(_REPEATS)}
        if len(digests) > 1 and not wrong:
            wrong = f"{unit.name} gave {len(digests)} results for one product in {_REPEATS} tries"
        facts["digest"] = min(digests)[:16]
        found.append(Measurement(group="compute", name="same bits", device=unit.name, facts=facts,
                                 wrong=wrong))  # fmt: skip
    return found


def _bytes(unit: Unit, first: torch.Tensor, second: torch.Tensor) -> bytes:
    result = (first @ second).cpu()
    whole = bool((result == result.round()).all())
    exact = result.long().numpy().astype("<i8") if whole else result.numpy()
    return bytes(point(Point.PRODUCT, bytes(exact.tobytes()), device=unit.name))
