"""Known accelerators: dense peaks, best products, memory, links of their usual node, power.

One table for MFU, qualification and planning. Each row names where its figures come from; what no
source gives is named as assumed. Rates are dense (no sparsity) and products accumulate in float32.

Sources. *NVIDIA*: data sheets of V100, A100, H100, H200, L40S, DGX B200 and GB200 NVL72. *GeForce*:
white papers of GA102, Ada and RTX Blackwell, appendix A. *AMD*: data sheet of Instinct MI300X.
*MAMF*: maximum achievable matmul FLOPS, github.com/stas00/ml-engineering, compute/accelerator.
*Network*: DGX A100 has 200 Gb/s for each GPU, DGX H100, H200 and B200 have 400 Gb/s.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from longhaul.core.errors import UsageError
from longhaul.core.units import Bytes

Basis = Literal["measured", "published", "assumed"]
"""Whence a figure: measured here, published by somebody, or nobody's but ours."""
Format = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
"""Element format of a matrix product."""

_SXM, _PCIE = "NVIDIA data sheet", "NVIDIA data sheet, PCIe card"
_GEFORCE = "NVIDIA GeForce white paper, appendix A"
_MAMF = "ml-engineering, compute/accelerator, MAMF table"
_USUAL = "assumed: one 100 Gb/s adapter in a node of eight cards"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator and the node it usually stands in. Rates in FLOP/s and bytes/s."""

    key: str
    """What `--gpu` takes."""
    driver_words: tuple[str, ...]
    """All of them stand in the name that the driver gives."""
    peak: Mapping[Format, float]
    """Dense peak, FLOP/s; a format that it has no units for is left out."""
    memory_bytes: Bytes
    """As sold, in decimal gigabytes; a driver keeps some of it."""
    memory_rate: float
    """Of its own memory, bytes/s."""
    node_devices: int
    link_rate: float
    """To the other devices of the node, bytes/s in one direction."""
    network_rate: float
    """To other nodes, bytes/s in one direction, for each device."""
    power_w: float
    """Board power at full load, watts."""
    source: str
    """Of peaks, memory, link and power."""
    best_product: Mapping[Format, float] = field(default_factory=dict)
    """Largest measured rate of a matrix product, FLOP/s; see `_MAMF`."""
    assumed: tuple[str, ...] = ()
    """Fields for which no source was at hand."""
    network_source: str = "400 Gb/s for each GPU, as in NVIDIA DGX H100"

    def basis(self, name: str) -> Basis:
        """Whence the figure in field `name`."""
        return "assumed" if name in self.assumed else "published"

    def source_of(self, name: str) -> str:
        """What a reader may look up for field `name`."""
        if name == "network_rate":
            return self.network_source
        return _MAMF if name == "best_product" else self.source


def _peaks(fp32: float, half: float, fp8: float | None, tf32: float | None) -> dict[Format, float]:
    """From TFLOP/s; bf16 and fp16 have one rate."""
    peaks: dict[Format, float] = {"fp32": fp32 * 1e12}
    if tf32 is not None:
        peaks["tf32"] = tf32 * 1e12
    peaks |= {"bf16": half * 1e12, "fp16": half * 1e12}
    return peaks if fp8 is None else {**peaks, "fp8": fp8 * 1e12}


def _best(half: float, fp8: float | None = None) -> dict[Format, float]:
    best: dict[Format, float] = {"bf16": half * 1e12}
    return best if fp8 is None else {**best, "fp8": fp8 * 1e12}


_HOPPER, _BLACKWELL = _peaks(67, 989, 1979, 494.5), _peaks(80, 2250, 4500, 1125)
_HDR = "200 Gb/s for each GPU, as in NVIDIA DGX A100"
_AMPERE = _peaks(19.5, 312, None, 156)
_UNSOURCED_NETWORK = ("network_rate",)

DEVICES: tuple[Device, ...] = (
    # Of two rows that fit a driver's name the first counts: a plain name is the SXM module.
    Device("h200-nvl", ("H200", "NVL"), _peaks(60, 835, 1671, 417.5), 141 * 10**9, 4.8e12, 8,
           450e9, 50e9, 600, _PCIE + "; the bridge joins four cards", {}, _UNSOURCED_NETWORK,
           "assumed: 400 Gb/s for each card"),
    Device("gh200", ("GH200",), _HOPPER, 96 * 10**9, 4.0e12, 1, 450e9, 50e9, 1000, _SXM,
           _best(828.6, 1535), ("network_rate",), "assumed: 400 Gb/s for each module"),
    Device("h200", ("H200",), _HOPPER, 141 * 10**9, 4.8e12, 8, 450e9, 50e9, 700, _SXM,
           _best(794.5, 1453.4)),
    Device("h100-pcie", ("H100", "PCIe"), _peaks(51, 756, 1513, 378), 80 * 10**9, 2.0e12, 8,
           64e9, 12.5e9, 350, _PCIE, {}, _UNSOURCED_NETWORK, "assumed: 100 Gb/s for each card"),
    Device("h100-nvl", ("H100", "NVL"), _peaks(60, 835, 1671, 417.5), 94 * 10**9, 3.9e12, 8,
           64e9, 25e9, 400, _PCIE + "; the bridge joins two cards only", {}, _UNSOURCED_NETWORK,
           "assumed: 200 Gb/s for each card"),
    Device("h100", ("H100",), _HOPPER, 80 * 10**9, 3.35e12, 8, 450e9, 50e9, 700, _SXM,
           _best(794.5, 1402.6)),
    Device("gb200", ("GB200",), _peaks(80, 2500, 5000, 1250), 186 * 10**9, 8.0e12, 4, 900e9,
           50e9, 1200, _SXM + " (NVL72: 72 GPUs share the link)", _best(1822, 3615.6)),
    Device("b200", ("B200",), _BLACKWELL, 180 * 10**9, 8.0e12, 8, 900e9, 50e9, 1000, _SXM,
           _best(1745, 3432.5)),
    Device("a100-40-pcie", ("A100", "PCIE", "40GB"), _AMPERE, 40 * 10**9, 1.555e12, 8, 32e9,
           12.5e9, 250, _PCIE, _best(252.9), _UNSOURCED_NETWORK, "assumed: 100 Gb/s for each card"),
    Device("a100-80-pcie", ("A100", "PCIe"), _AMPERE, 80 * 10**9, 1.935e12, 8, 32e9, 12.5e9,
           300, _PCIE, _best(252.9), _UNSOURCED_NETWORK, "assumed: 100 Gb/s for each card"),
    Device("a100-40", ("A100", "40GB"), _AMPERE, 40 * 10**9, 1.555e12, 8, 300e9, 25e9, 400,
           _SXM, _best(271.2), (), _HDR),
    Device("a100-80", ("A100",), _AMPERE, 80 * 10**9, 2.039e12, 8, 300e9, 25e9, 400, _SXM,
           _best(271.2), (), _HDR),
    Device("v100-16", ("V100", "16GB"), {"fp32": 15.7e12, "fp16": 125e12}, 16 * 10**9, 0.9e12,
           8, 150e9, 12.5e9 / 2, 300, _SXM, {}, (), "4 × 100 Gb/s for 8 GPUs, NVIDIA DGX-1"),
    Device("v100-32", ("V100",), {"fp32": 15.7e12, "fp16": 125e12}, 32 * 10**9, 0.9e12, 8,
           150e9, 12.5e9 / 2, 300, _SXM, {}, (), "4 × 100 Gb/s for 8 GPUs, NVIDIA DGX-1"),
    Device("l40s", ("L40S",), _peaks(91.6, 362, 733, 183), 48 * 10**9, 0.864e12, 8, 32e9,
           12.5e9, 350, _PCIE, {}, _UNSOURCED_NETWORK, "assumed: 100 Gb/s for each card"),
    Device("rtx3090", ("RTX 3090",), _peaks(35.6, 71, None, 35.6), 24 * 10**9, 0.936e12, 8,
           32e9, 1.5625e9, 350, _GEFORCE + " (GA102)", {}, _UNSOURCED_NETWORK, _USUAL),
    Device("rtx4090", ("RTX 4090",), _peaks(82.6, 165, 330, 82.6), 24 * 10**9, 1.008e12, 8,
           32e9, 1.5625e9, 450, _GEFORCE + " (Ada)", {}, _UNSOURCED_NETWORK, _USUAL),
    Device("rtx5090", ("RTX 5090",), _peaks(104.8, 209.5, 419, 104.8), 32 * 10**9, 1.792e12, 8,
           64e9, 1.5625e9, 575, _GEFORCE + " (RTX Blackwell)", {}, _UNSOURCED_NETWORK, _USUAL),
    Device("mi300x", ("MI300X",), _peaks(163.4, 1307.4, 2614.9, 653.7), 192 * 10**9, 5.3e12, 8,
           448e9, 50e9, 750, "AMD data sheet", _best(668.4), _UNSOURCED_NETWORK,
           "assumed: 400 Gb/s for each GPU"),
)  # fmt: skip

ALIASES = {
    "a100": "a100-80", "a100-sxm": "a100-80", "h100-sxm": "h100", "h100-80": "h100",
    "h200-sxm": "h200", "b200-sxm": "b200", "v100": "v100-32", "3090": "rtx3090",
    "4090": "rtx4090", "5090": "rtx5090",
}  # fmt: skip
"""Other things that people write after `--gpu`."""


def device_of_driver(driver_name: str) -> Device | None:
    """The row that fits what a driver calls a device, such as "NVIDIA A100-SXM4-80GB"; None if
    there is none, as for any CPU.
    """
    lowered = driver_name.lower()
    for device in DEVICES:
        if all(word.lower() in lowered for word in device.driver_words):
            return device
    return None


def device_named(name: str) -> Device:
    """The row with key or alias `name`, in any case; a `UsageError` names the nearest otherwise."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    key = ALIASES.get(key, key)
    for device in DEVICES:
        if device.key in (key, key.replace("-", "")):
            return device
    raise UsageError(f"--gpu: {name} is not a known device", _nearest(key))


def _nearest(key: str) -> str:
    known = sorted(device.key for device in DEVICES)
    near = difflib.get_close_matches(key, [*known, *ALIASES], n=1, cutoff=0.5)
    listed = ", ".join(known)
    if not near:
        return f"known: {listed}"
    return f"did you mean {ALIASES.get(near[0], near[0])}? Known: {listed}"
