"""Shows what is wrong with this machine: wrong bits, lost memory, lost speed, a slow link.

It needs Python and PyTorch alone. Ends with 1 if it finds something.

    python reproducer.py                 this machine
    python reproducer.py --serve         wait for another machine
    python reproducer.py --link HOST     bandwidth and latency to the one that waits
"""

import argparse
import contextlib
import hashlib
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

PORT = 29_777
MEGABYTE = 1 << 20


def cores_here() -> list[int | None]:
    """The cores of this process; None stands for all of them where they cannot be chosen."""
    return [*sorted(os.sched_getaffinity(0))] if hasattr(os, "sched_getaffinity") else [None]


def devices(torch: Any) -> list[tuple[str, Any, int | None]]:
    """All GPUs; the cores of the processor where there is none."""
    if torch.cuda.is_available():
        return [
            (f"cuda:{n}", torch.device("cuda", n), None) for n in range(torch.cuda.device_count())
        ]
    cores = cores_here()
    return [(f"core {core}", torch.device("cpu"), core) for core in cores[:16]]


@contextlib.contextmanager
def bound(core: int | None) -> Iterator[None]:
    """Compute on one core alone."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def bits(torch: Any, device: Any) -> int:
    """How many different results one product has in 20 tries: 1 is right."""
    torch.manual_seed(17)
    a, b = (torch.randn(1024, 1024).to(device) for _ in range(2))
    return len({hashlib.sha256((a @ b).cpu().numpy().tobytes()).hexdigest() for _ in range(20)})


def lost_words(torch: Any, device: Any) -> int:
    """Words of memory that did not keep a pattern."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 1024 * MEGABYTE
    held = [
        torch.empty(64 * MEGABYTE // 8, dtype=torch.int64, device=device)
        for _ in range(max(1, int(free * 0.8) // (64 * MEGABYTE)))
    ]
    lost = 0
    for pattern in (0x5555555555555555, -0x5555555555555556, 0, -1):
        for chunk in held:
            chunk.fill_(pattern)
        lost += sum(int((chunk != pattern).sum()) for chunk in held)
    return lost


def rates(torch: Any, device: Any, seconds: float) -> list[float]:
    """FLOP/s of a matrix product, window by window."""
    gpu = device.type == "cuda"
    side, calls = (8192, 4) if gpu else (192, 200)
    kind = torch.bfloat16 if gpu else torch.float32
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    found, until = [], time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        for _ in range(calls):
            torch.mm(a, b)
        if gpu:
            torch.cuda.synchronize(device)
        found.append(calls * 2 * side**3 / (time.perf_counter() - began))
    return found[1:] or found


def check_machine(seconds: float) -> int:
    """Print the figures of each device; how many things are wrong."""
    import torch

    torch.set_num_threads(1)
    wrong = 0
    speeds = {}
    for name, device, core in devices(torch):
        with bound(core):
            results = bits(torch, device)
            found = rates(torch, device, seconds)
        half = len(found) // 2
        first, second = (statistics.median(part) for part in (found[:half], found[half:]))
        speeds[name] = second
        print(f"{name}: {second / 1e12:.4g} TFLOP/s, {second / first:.0%} of its first half; "
              f"{results} result(s) of one product")  # fmt: skip
        wrong += results > 1 or second < 0.7 * first
    usual = statistics.median(speeds.values())
    for name, speed in speeds.items():
        if speed < 0.7 * usual:
            print(f"{name} is slow: {speed / usual:.0%} of the median")
            wrong += 1
    for name, device in {(n if d.type == "cuda" else "host", d) for n, d, _ in devices(torch)}:
        lost = lost_words(torch, device)
        print(f"{name}: {lost} words of memory did not keep a pattern")
        wrong += lost > 0
    return wrong


def serve(port: int) -> None:
    """Answer one machine."""
    with socket.create_server(("", port)) as server:
        server.settimeout(600)
        connection, _ = server.accept()
        with connection:
            while True:
                head = connection.recv(8, socket.MSG_WAITALL)
                if len(head) < 8:
                    return
                left = int.from_bytes(head, "big")
                while left:
                    piece = connection.recv(min(left, MEGABYTE))
                    if not piece:
                        return
                    left -= len(piece)
                connection.sendall(b"k")


def link(host: str, port: int) -> None:
    """Print latency and bandwidth to a machine that waits."""
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send(size: int) -> float:
            began = time.perf_counter()
            connection.sendall(size.to_bytes(8, "big") + b"\0" * size)
            connection.recv(1)
            return time.perf_counter() - began

        half = min(send(1) for _ in range(20)) / 2
        rate = max(64 * MEGABYTE / send(64 * MEGABYTE) for _ in range(5))
        print(f"to {host}: {half * 1e3:.3g} ms one way, {rate / 1e9:.3g} GB/s")


def main() -> int:
    """What was asked; the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--serve", action="store_true", help="wait for another machine")
    options.add_argument("--link", metavar="HOST", help="measure the link to one that waits")
    options.add_argument("--seconds", type=float, default=20.0, help="of load on each device")
    options.add_argument("--port", type=int, default=PORT)
    given = options.parse_args()
    if given.serve:
        serve(given.port)
        return 0
    if given.link:
        link(given.link, given.port)
        return 0
    return 1 if check_machine(given.seconds) else 0


if __name__ == "__main__":
    sys.exit(main())
