"""The device of this machine, as a row like those of known devices."""

import torch

from longhaul.core.devices import Basis, Device, Format, device_of_driver
from longhaul.core.errors import UsageError
from longhaul.core.machine import available_memory
from longhaul.core.units import Bytes
from longhaul.parallel.device import own_device
from longhaul.run.profile.ceilings import measure_ceilings

_FORMATS: dict[str, Format] = {"float": "fp32", "c10::BFloat16": "bf16"}


def this_device(wanted: str) -> tuple[Device, Basis, Bytes]:
    """What would train here: its row, whence that is, and the bytes of memory that it has free.

    `wanted` is `machine.device`. A GPU has a row of `core/devices.py`, else a `UsageError`; a CPU
    is measured in about a second: products of 1,024 rows and copies.
    """
    device = own_device(wanted)
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        known = device_of_driver(name)
        if known is None:
            raise UsageError(
                f"this machine's {name} is not a known device",
                "name one that is like it with --gpu, or add its row to core/devices.py",
            )
        memory = torch.cuda.get_device_properties(device).total_memory
        return known, "assumed" if known.assumed else "published", memory
    if device.type != "cpu":
        raise UsageError(
            f"{device.type} devices are not planned for", "give --gpu, or --set machine.device=cpu"
        )
    return measured_cpu(), "measured", available_memory()


def measured_cpu() -> Device:
    """The CPU here: best products and copies, measured; its processes share one memory."""
    ceilings = measure_ceilings(torch.device("cpu"), _FORMATS)
    peak = {_FORMATS[name]: rate for name, rate in ceilings.flops.items()}
    return Device(
        key=f"cpu: {ceilings.device}", driver_words=(), peak=peak,
        memory_bytes=available_memory(), memory_rate=ceilings.bandwidth, node_devices=1 << 10,
        link_rate=ceilings.bandwidth / 2, network_rate=ceilings.bandwidth / 2, power_w=0.0,
        source="measured now", best_product=peak, network_source="assumed: half a copy's rate",
        assumed=("link_rate", "network_rate"),
    )  # fmt: skip
