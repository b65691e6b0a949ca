"""Throughput, and the share of a device's peak that it makes use of."""

from collections import deque

from longhaul.core.clocks import STEP_BUCKETS
from longhaul.core.devices import device_of_driver
from longhaul.core.errors import LonghaulError
from longhaul.core.records import StepRecord

_WINDOW_STEPS = 20


class Throughput:
    """Tokens per second over the last 20 steps: enough to be calm, few enough to show a change.

    Target tokens of the global batches of these steps, over the wall seconds in which rank 0 saw
    them become complete (`STEP_BUCKETS`). What is booked as evaluation, saving or a start does not
    count, nor do steps that compiled: neither their tokens nor their time.
    """

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=_WINDOW_STEPS)

    def see(self, record: StepRecord) -> None:
        """Take the next completed step."""
        if "compile" in record.seconds:
            return
        seconds = sum(record.seconds.get(bucket, 0.0) for bucket in STEP_BUCKETS)
        self._steps.append((seconds, record.tokens))

    @property
    def seconds_per_step(self) -> float:
        """0 before the first step."""
        return sum(seconds for seconds, _ in self._steps) / max(len(self._steps), 1)

    @property
    def tokens_per_second(self) -> float:
        """0 as long as no time was booked."""
        seconds = sum(seconds for seconds, _ in self._steps)
        return sum(tokens for _, tokens in self._steps) / seconds if seconds else 0.0


def peak_flops(
    device_name: str, compute: str, tf32: bool = False, float8: bool = False
) -> float | None:
    """FLOP/s that a device of this driver's name can do at best; None if it is not known, as of any
    CPU. float32 products in TensorFloat-32 have half the rate of bf16. With `float8` all products
    are held against its rate, though attention and the head are made in `compute`.
    """
    device = device_of_driver(device_name)
    if device is None:
        return None
    if float8:
        return device.peak.get("fp8")
    if compute != "float32":
        return device.peak.get("fp16" if compute.startswith("fp16") else "bf16")
    return device.peak.get("tf32" if tf32 else "fp32")


def mfu(tokens_per_second: float, flops_per_token: float, peak: float | None) -> float | None:
    """Model FLOPs utilisation, 0 to 1 (PaLM, arXiv 2204.02311, appendix B), of all devices
    together; None without a known peak in FLOP/s. A `LonghaulError` beyond the peak: that or the
    clock is wrong.
    """
    if peak is None:
        return None
    share = tokens_per_second * flops_per_token / peak
    if share > 1:
        raise LonghaulError(
            f"MFU of {share:.0%}: {tokens_per_second:,.0f} tokens/s at {flops_per_token:.3g} FLOPs "
            f"each are more than the device's peak of {peak:.3g} FLOP/s",
            "correct the device's row in core/devices.py, or the time that was measured",
        )
    return share
