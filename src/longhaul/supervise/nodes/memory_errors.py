"""Errors of a node's memory, corrected and not; run as a program, prints them as JSON."""

import json
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_EDAC = "sys/devices/system/edac/mc"
_CORRECTED_LINE = re.compile(r"EDAC \S+ (?P<count>\d+) CE\b")
_HIGH_RATE_LINE = re.compile(r"NVRM: Xid .*: 92,")
HIGH_RATE = 60
"""What one message of a high rate counts: the driver has counted by itself (Xid 92)."""


def errors_words(command: Sequence[str]) -> list[str]:
    """The command line that reads a node's counters."""
    return [*command, sys.executable, "-m", __name__]


def corrected_in(messages: str) -> int:
    """Corrected errors that the kernel tells of."""
    counted = sum(int(found["count"]) for found in _CORRECTED_LINE.finditer(messages))
    return counted + HIGH_RATE * len(_HIGH_RATE_LINE.findall(messages))


def host_errors(root: Path = Path("/")) -> tuple[int, int]:
    """Corrected and uncorrected errors of the host's memory since its boot."""
    corrected, uncorrected = (
        sum(_number(path) for path in (root / _EDAC).glob(f"mc*/{name}"))
        for name in ("ce_count", "ue_count")
    )
    return corrected, uncorrected


def gpu_errors() -> tuple[int, int]:
    """Corrected and uncorrected errors of all GPUs since their last reset; none where NVML or the
    GPUs' error correction are missing.
    """
    counts = [0, 0]
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 (whatever is missing, there is nothing to count)
        return 0, 0
    try:
        kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
        for number in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(number)
            for place, kind in enumerate(kinds):
                with suppress(nvml.NVMLError):
                    counts[place] += nvml.nvmlDeviceGetTotalEccErrors(
                        device, kind, nvml.NVML_VOLATILE_ECC
                    )
    finally:
        nvml.nvmlShutdown()
    return counts[0], counts[1]


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    corrected, uncorrected = (sum(pair) for pair in zip(host_errors(), gpu_errors(), strict=True))
    print(json.dumps({"corrected": corrected, "uncorrected": uncorrected}))
