"""Detection and recovery of longhaul as inputs: what its own benchmarks measured, and what cannot
be carried from two processes to a thousand nodes and is therefore assumed.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from longhaul.core.units import Seconds
from longhaul.plan.failure_rates import ASSUMED
from longhaul.plan.simulate.inputs import MINUTE_S, Input, Inputs, assumed


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of a result file of the benchmarks."""

    file: str
    name: str
    """Of its bar."""
    value: float
    unit: str

    @property
    def source(self) -> str:
        """For people."""
        return f"benchmarks/results/{self.file}, {self.name}: {self.value:.3g} {self.unit}"


CRASH_SEEN: Final = Measured("recovery.json", "kill, 2 processes: detect", 0.062376, "s")
RECOVERED: Final = Measured("recovery.json", "kill, 2 processes: recover", 3.22132, "s")
HANG_SEEN: Final = Measured("recovery.json", "hang, 2 processes: detect", 32.16995, "s")
NAN_RECOVERED: Final = Measured("recovery.json", "NaN, 2 processes: recover", 2.6009, "s")
STALL: Final = Measured(
    "save_stall.json", "gpt2-124m, CPU: the training thread blocks", 1.892773, "ms"
)
MEASURED: Final = (CRASH_SEEN, RECOVERED, HANG_SEEN, NAN_RECOVERED, STALL)
"""A test holds them to the files."""

_INIT_GPUS = 1024
_INIT_S: Seconds = 3 * MINUTE_S
_DOUBLING_S: Seconds = MINUTE_S
"""Added to it by each doubling of the GPUs."""


def under_longhaul(before: Inputs, gpus: int) -> Inputs:
    """The inputs of a run of so many GPUs with failures seen and answered by longhaul.

    What the cluster and its provider do (rates, repairs, bad machines that come back, planned
    work, stragglers, incidents of the numbers) stays as it is.
    """
    start_s = _INIT_S + _DOUBLING_S * math.log2(max(gpus / _INIT_GPUS, 1.0))
    return replace(
        before,
        crash_seen_s=assumed(10.0, 1.0, MINUTE_S, "s",
                             f"{CRASH_SEEN.source} on one machine; between nodes the call of a "
                             "silent node, every 10 s (supervise/nodes/health_monitor.py)"),
        hang_seen_s=None,
        silent_seen_s=None,
        straggler_seen_s=None,
        manual_share=Input(0.0, "", "no restart waits for a person unless the policy says so"),
        person_s=before.person_s,
        diagnosis_s=assumed(30.0, 5.0, 5 * MINUTE_S, "s",
                            f"{RECOVERED.source}, of which causes take a part; stacks and logs of "
                            "more ranks take longer"),
        probe_s=assumed(2 * MINUTE_S, MINUTE_S, 10 * MINUTE_S, "s", "longhaul's probe of a node"),
        probe_finds=assumed(0.9, 0.6, 1.0, ""),
        restart_s=assumed(start_s, start_s / 3, 3 * start_s, "s",
                          f"{RECOVERED.source}, imports included; process groups of 1,024 "
                          "ranks are taken to cost 3 min, and each doubling one more"),
        load_s=assumed(2 * MINUTE_S, 0.5 * MINUTE_S, 10 * MINUTE_S, "s",
                       "a sharded read, each node its own part at 0.2 GB/s or more"),
        load_memory_s=assumed(10.0, 3.0, MINUTE_S, "s", NAN_RECOVERED.source),
        save_interval_s=None,
        save_stall_s=assumed(1.0, 0.2, 10.0, "s",
                             f"{STALL.source} for 1.5 GB on a host; a copy of some GB from a "
                             "device at its link's speed"),
        save_write_s=assumed(2 * MINUTE_S, 0.5 * MINUTE_S, 10 * MINUTE_S, "s"),
        snapshot_steps=Input(25.0, "steps", "checkpoint.snapshot_interval_steps, its default"),
        numeric_seen_s=replace(before.numeric_seen_s, value=5 * MINUTE_S, low=MINUTE_S,
                               high=20 * MINUTE_S,
                               source=f"{ASSUMED}: docs/judgement.md's detectors, some steps late"),
        numeric_person_s=Input(0.0, "s", "nobody is asked unless the policy says so"),
    )  # fmt: skip
