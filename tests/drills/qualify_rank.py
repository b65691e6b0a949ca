"""A rank of a battery with a fault in it: `python -m drills.qualify_rank FAULT qualify …`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from longhaul.cli.entry import main
from longhaul.core.faults import Point, register

BURN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
print("burning", flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""A busy neighbour on one core, for as long as its parent lives."""
BURNERS = 24
"""On a core: more than what else may run on a shared machine, which they push to the other core."""


def burn(cores: list[int]) -> list[subprocess.Popen[bytes]]:
    """Busy neighbours on these cores, all of them at work when this returns.

    Each has a session of its own: the kernel deals out time between sessions first (autogroup), so
    that those of one session would take each other's time, and their parent's on every core.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BURN, str(core)], stdout=subprocess.PIPE, start_new_session=True
        )
        for core in cores
        for _ in range(BURNERS)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"burning\n"
    return started


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()


LAST = f"core {max(range(os.cpu_count() or 1))}"


def half_clock(work: Callable[[], object], device: str, so_far: float) -> Callable[[], object]:
    """The work takes twice as long, as at half the clock."""

    def twice() -> None:
        work()
        work()

    return twice


def half_clock_of_last(
    work: Callable[[], object], device: str, so_far: float
) -> Callable[[], object]:
    return half_clock(work, device, so_far) if device == LAST else work


def throttle(work: Callable[[], object], device: str, so_far: float) -> Callable[[], object]:
    """From the middle on, as of a device that has become hot."""
    return half_clock(work, device, so_far) if so_far >= 0.5 else work


_flipped: list[str] = []


def flip_product(value: bytes, device: str) -> bytes | None:
    """One bit, once, of the products of the last core."""
    if device != LAST or _flipped:
        return None
    _flipped.append(device)
    changed = bytearray(value)
    changed[1000] ^= 4
    return bytes(changed)


def flip_memory(chunk: Any) -> None:
    if not _flipped:
        _flipped.append("memory")
        chunk[12_345] ^= 1 << 20


def slow_disk(_: Any) -> None:
    time.sleep(0.3)


def other_version(facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {"driver": "535.104.05"}


def usual_version(facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {"driver": "580.95.05"}


def stop_here(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


FAULTS = {
    "none": (),
    "half-clock": ((Point.PRODUCT_WINDOW, half_clock),),
    "half-clock-of-one": ((Point.PRODUCT_WINDOW, half_clock_of_last),),
    "throttle": ((Point.PRODUCT_WINDOW, throttle),),
    "flip-product": ((Point.PRODUCT, flip_product),),
    "flip-memory": ((Point.PATTERN, flip_memory),),
    "slow-disk": ((Point.DISK_WRITE, slow_disk),),
    "old-driver": ((Point.NODE_FACTS, other_version),),
    "driver": ((Point.NODE_FACTS, usual_version),),
    "hang": ((Point.BEFORE_COLLECTIVE, stop_here),),
}

if __name__ == "__main__":
    for at, handler in FAULTS[sys.argv.pop(1)]:
        register(at, handler)
    main()
