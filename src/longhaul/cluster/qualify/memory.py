"""Memory of devices and of the host: its rate, patterns over most of it, counters of errors. It
runs on the node that it measures.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch

from longhaul.cluster.qualify.products import WINDOW_S, Unit, upper
from longhaul.cluster.qualify.records import Measurement
from longhaul.core.faults import Point, point
from longhaul.core.machine import available_memory
from longhaul.core.units import Bytes, Seconds, short_bytes
from longhaul.supervise.nodes.qualify import gpu_errors, host_errors

_COPIED_GPU: Bytes = 1 << 30
_COPIED_CORE: Bytes = 64 << 20
"""More than the caches of a core; those of large servers hold more, and are part of the figure."""
_FEWEST_COPIES = 10
_CHUNK: Bytes = 64 << 20
_SHARE_GPU, _SHARE_HOST = 0.9, 0.5
"""Of what is free, for patterns."""
_QUICK: Bytes = 256 << 20
PATTERNS = (0x5555555555555555, -0x5555555555555556, 0, -1)
"""Each bit in both states, with equal and with different neighbours (0x55…, 0xAA…, all, none)."""


@torch.no_grad()
def rates(chosen: Sequence[Unit], seconds_each: Seconds) -> list[Measurement]:
    """Bytes read and written in a second by a copy on each device; a core's in its own time."""
    found = []
    for unit in chosen:
        with unit.bound():
            size = _COPIED_GPU if unit.device.type == "cuda" else _COPIED_CORE
            source = torch.zeros(size, dtype=torch.uint8, device=unit.device)
            target = torch.empty_like(source)
            found.append(
                Measurement(
                    group="memory", name="memory rate", device=unit.name, unit="B/s",
                    value=upper(list(_copies(source, target, seconds_each))),
                )
            )  # fmt: skip
            del source, target
    return found


def _copies(source: torch.Tensor, target: torch.Tensor, seconds: Seconds) -> Iterator[float]:
    now = time.perf_counter if target.is_cuda else time.thread_time
    target.copy_(source)  # touches new pages, which takes longer than the copy
    until, made, calls = time.perf_counter() + seconds, 0, 1
    while made < _FEWEST_COPIES or time.perf_counter() < until:
        if target.is_cuda:
            torch.cuda.synchronize(target.device)
        began = now()
        for _ in range(calls):
            target.copy_(source)
        if target.is_cuda:
            torch.cuda.synchronize(target.device)
        took = max(now() - began, 1e-9)
        yield 2.0 * source.numel() * calls / took
        calls = max(1, min(calls * 2, round(calls * WINDOW_S / took)))
        made += 1


@torch.no_grad()
def patterns(chosen: Sequence[Unit], quick: bool) -> list[Measurement]:
    """Fill memory with each pattern, then read all of it: what differs has not been kept."""
    on_gpus = [unit for unit in chosen if unit.device.type == "cuda"]
    places = [(unit.name, unit.device) for unit in on_gpus] or [("host", torch.device("cpu"))]
    return [_pattern(name, device, quick) for name, device in places]


def _pattern(name: str, device: torch.device, quick: bool) -> Measurement:
    if device.type == "cuda":
        size = int(torch.cuda.mem_get_info(device)[0] * _SHARE_GPU)
    else:
        size = int(available_memory() * _SHARE_HOST)
    size = min(size, _QUICK) if quick else size
    held: list[torch.Tensor] = []
    wrong = ""
    # Less may be had than was free a moment ago: other processes take some.
    with suppress(RuntimeError):
        for _ in range(max(1, size // _CHUNK)):
            chunk = torch.empty(_CHUNK // 8, dtype=torch.int64, device=device)
            held.append(chunk)
    tested = len(held) * _CHUNK
    if not held:
        wrong = f"{short_bytes(_CHUNK)} of memory cannot be had"
    began = time.monotonic()
    for pattern in PATTERNS:
        for chunk in held:
            chunk.fill_(pattern)
        for number, chunk in enumerate(held):
            point(Point.PATTERN, chunk)
            if lost := int((chunk != pattern).sum()):
                wrong = wrong or (
                    f"{lost} words of {name}'s memory did not keep {pattern & (1 << 64) - 1:#018x}"
                    f" (from {short_bytes(number * _CHUNK)} on)"
                )
    rate = 2.0 * tested * len(PATTERNS) / max(time.monotonic() - began, 1e-9)
    return Measurement(group="memory", name="pattern", device=name, value=float(tested), unit="B",
                       wrong=wrong, facts={"bytes_per_s": rate})  # fmt: skip


def counters() -> dict[str, int]:
    """Corrected and uncorrected errors so far, of the host's and of the GPUs' memory."""
    host, gpus = host_errors(), gpu_errors()
    return {"corrected": host[0] + gpus[0], "uncorrected": host[1] + gpus[1]}


def counted(before: dict[str, int], has_gpus: bool, has_counters: bool) -> list[Measurement]:
    """What the counters of errors have gained since `before`, and rows that GPUs have replaced."""
    if not has_counters:
        why = "neither the kernel (EDAC) nor NVML counts memory errors here"
        found = [Measurement(group="memory", name="ecc", skipped=why)]
    else:
        now = counters()
        gained = {kind: now[kind] - before[kind] for kind in now}
        wrong = ""
        if now["uncorrected"]:
            wrong = f"memory was lost {now['uncorrected']} times since the last reset"
        found = [
            Measurement(
                group="memory", name="ecc", value=float(gained["corrected"]), unit="corrected",
                facts=now | {"gained": gained}, wrong=wrong,
            )
        ]  # fmt: skip
    if not has_gpus:
        why = "rows are remapped by GPUs alone, and there is none"
        return [*found, Measurement(group="memory", name="row remaps", skipped=why)]
    return [*found, *_remaps()]


def _remaps() -> Iterator[Measurement]:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        try:
            for number in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(number)
                corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
                wrong = ""
                if failed:
                    wrong = f"a row of GPU {number} could not be remapped: it has no spare rows"
                elif pending:
                    wrong = f"a row of GPU {number} is remapped at its next reset only"
                yield Measurement(
                    group="memory", name="row remaps", device=f"cuda:{number}", unit="rows",
                    value=float(corrected + uncorrected), wrong=wrong,
                )  # fmt: skip
        finally:
            nvml.nvmlShutdown()
    except Exception as error:  # noqa: BLE001 (NVML raises a class of its own for each failure)
        why = f"NVML does not count remapped rows here ({type(error).__name__})"
        yield Measurement(group="memory", name="row remaps", skipped=why)
