"""The roofline's ceilings, measured where the profile was taken: large products, and copies."""

import time
from collections.abc import Callable, Iterable
from functools import partial

import torch

from longhaul.core.machine import machine
from longhaul.core.units import Bytes, Seconds, count
from longhaul.model.device import Mark, wait_for
from longhaul.plan.roofline import Ceilings

_TYPES = {"float": torch.float32, "c10::BFloat16": torch.bfloat16, "c10::Half": torch.float16}
"""By the names that a trace has for them."""
_SIDE = {"cuda": 8192}
_SIDE_ELSEWHERE = 1024
"""Of square products: 1.1 TFLOP on a GPU, 2 GFLOP on a CPU."""
_COPIED = [1 << power for power in range(12, 28, 3)]
"""Bytes: 4 kB, a call and hardly anything else, to 128 MB, more than caches hold."""
_ROUNDS, _BUDGET_S = 15, 0.5
_SLEEP_CYCLES = 4_000_000
"""2 ms, in which a host queues hundreds of calls."""


@torch.no_grad()
def measure_ceilings(device: torch.device, types: Iterable[str]) -> Ceilings:
    """What `device` reaches in products of these types and in copies, each at its best."""
    side = _SIDE.get(device.type, _SIDE_ELSEWHERE)
    flops: dict[str, float] = {}
    for name in sorted(_TYPES.keys() & set(types)):
        a, b = (torch.randn(side, side, device=device).to(_TYPES[name]) for _ in range(2))
        flops[name] = (
            2.0 * side**3 / _best(device, partial(torch.mm, a, b, out=torch.empty_like(a)))
        )
    copies: list[tuple[Bytes, Seconds]] = []
    for size in _COPIED:
        source = torch.zeros(size, dtype=torch.uint8, device=device)
        repeats = max(1, min(50, (1 << 21) // size))
        took = _best(device, partial(torch.empty_like(source).copy_, source), repeats)
        # A larger copy that seems faster was measured beside less noise.
        copies.append((2 * size, max(took, copies[-1][1] if copies else 0.0)))
    of_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if of_gpu else str(machine()["cpu"])
    threads = "" if of_gpu else f" with {count(torch.get_num_threads(), 'thread')}"
    return Ceilings(f"{name}{threads}", flops, tuple(copies))


def _best(device: torch.device, work: Callable[[], object], repeats: int = 1) -> Seconds:
    """Seconds of the fastest of a few rounds."""
    timed = _timed_by_device if device.type == "cuda" else _timed_by_host
    best, until = float("inf"), time.perf_counter() + _BUDGET_S
    for number in range(_ROUNDS):
        best = min(best, timed(device, work, repeats) / repeats)
        if number and time.perf_counter() > until:
            break
    return best


def _timed_by_host(device: torch.device, work: Callable[[], object], repeats: int) -> Seconds:
    wait_for(device)
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    wait_for(device)
    return time.perf_counter() - began


def _timed_by_device(device: torch.device, work: Callable[[], object], repeats: int) -> Seconds:
    """Without what the host takes to queue it: all is queued while the device sleeps."""
    with torch.cuda.device(device):
        torch.cuda._sleep(_SLEEP_CYCLES)
        begin = Mark(device, timing=True).record()
        for _ in range(repeats):
            work()
        end = Mark(device, timing=True).record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3
