"""What a node is beside its devices: versions, limits, NUMA placement, errors in the kernel's log
and on PCIe, the time to import torch. It runs on the node that it reads.
"""

import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import longhaul
from longhaul.cluster.qualify.records import Measurement
from longhaul.core.faults import Point, point
from longhaul.core.machine import environment, installed_packages, machine
from longhaul.core.units import Seconds

IMPORT_WITHIN_S: Seconds = 120.0
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<device>[0-9a-fA-F:.]+)\): (?P<code>\d+)")
_HARMLESS_XIDS = frozenset({13, 31, 43, 45})
"""Faults of a program (NVIDIA, "XID Errors": user application error), not of the GPU."""
_LOG_WITHIN_S: Seconds = 10.0
_UNLIMITED = 2.0**63


def facts() -> dict[str, Any]:
    """Versions that must be equal on all nodes; what cannot be read is left out."""
    packages = json.dumps(dict(installed_packages()), sort_keys=True)
    found: dict[str, Any] = {
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "longhaul": longhaul.__version__,
        "torch": installed_packages().get("torch", ""),
        "packages": hashlib.sha256(packages.encode()).hexdigest()[:12],
        "cpu": str(machine()["cpu"]),
        "environment": hashlib.sha256(json.dumps(_same_everywhere()).encode()).hexdigest()[:12],
    }
    found |= _gpu_versions()
    if fabric := _infiniband_firmware():
        found["fabric firmware"] = fabric
    changed: dict[str, Any] = point(Point.NODE_FACTS, found)
    return changed


def _same_everywhere() -> dict[str, str]:
    """Variables that change numbers or traffic, without those that name a node's own interface."""
    own = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "CUDA_VISIBLE_DEVICES")
    return {key: value for key, value in environment().items() if key not in own}


def _gpu_versions() -> dict[str, Any]:
    try:
        import pynvml as nvml

        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 (no driver, no library: nothing to say)
        return {}
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        return {
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "gpus": sorted({_text(nvml.nvmlDeviceGetName(handle)) for handle in handles}),
            "gpu count": len(handles),
            "vbios": sorted({_text(nvml.nvmlDeviceGetVbiosVersion(handle)) for handle in handles}),
        }
    except Exception as error:  # noqa: BLE001
        return {"driver": f"unreadable ({type(error).__name__})"}
    finally:
        nvml.nvmlShutdown()


def throttle_reasons(number: int) -> str:
    """What the driver says of GPU `number`'s clocks now; empty where nothing slows them."""
    try:
        import pynvml as nvml

        nvml.nvmlInit()
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        finally:
            nvml.nvmlShutdown()
    except Exception:  # noqa: BLE001
        return ""
    # Bits of NVML's nvmlClocksEventReasons.
    names = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat (driver)",
             0x40: "heat (hardware)", 0x80: "power brake"}  # fmt: skip
    return ", ".join(name for bit, name in names.items() if mask & bit)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _infiniband_firmware(root: Path = Path("/")) -> list[str]:
    return sorted({_read(path) for path in (root / "sys/class/infiniband").glob("*/fw_ver")})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def host(root: Path = Path("/")) -> list[Measurement]:
    """All figures of this node."""
    own = facts()
    return [
        Measurement(group="host", name="versions", facts=own),
        *limits(),
        numa(root),
        kernel_errors(kernel_log()),
        pcie(root),
        torch_import(),
    ]


def limits() -> list[Measurement]:
    """Open files, locked memory, shared memory."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    fabric = Path("/dev/infiniband").is_dir()
    found = [
        Measurement(group="host", name="open files", value=_limit(files), unit="files"),
        Measurement(group="host", name="locked memory", value=_limit(locked), unit="B",
                    facts={"infiniband": fabric},
                    skipped="" if fabric else "locked memory matters to InfiniBand alone"),
    ]  # fmt: skip
    try:
        shared = float(shutil.disk_usage("/dev/shm").total)
    except OSError:
        return found
    return [*found, Measurement(group="host", name="shared memory", value=shared, unit="B")]


def _limit(value: int) -> float:
    return _UNLIMITED if value == resource.RLIM_INFINITY else float(value)


def numa(root: Path = Path("/")) -> Measurement:
    """How many NUMA nodes this process may compute on, of those there are."""
    nodes = sorted((root / "sys/devices/system/node").glob("node[0-9]*"))
    if len(nodes) < 2:
        why = "the node has one NUMA node"
        return Measurement(group="host", name="numa placement", skipped=why)
    usable = os.sched_getaffinity(0)
    mine = [each for each in nodes if usable & cpus_in(_read(each / "cpulist"))]
    facts = {"nodes": len(nodes), "usable": len(mine), "cores": len(usable)}
    return Measurement(group="host", name="numa placement", value=float(len(mine)),
                       unit="NUMA nodes", facts=facts)  # fmt: skip


def cpus_in(text: str) -> frozenset[int]:
    """The processors in `0-3,8`, as the kernel writes lists."""
    found: set[int] = set()
    for piece in filter(None, text.split(",")):
        first, _, last = piece.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def kernel_log() -> str | None:
    """The kernel's messages; None where they cannot be read."""
    try:
        ended = subprocess.run(["dmesg"], capture_output=True, timeout=_LOG_WITHIN_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout.decode(errors="replace") if ended.returncode == 0 else None


def kernel_errors(text: str | None) -> Measurement:
    """Xid messages of GPUs since the boot that programs do not cause."""
    if text is None:
        why = "the kernel's log cannot be read here (dmesg needs a permission)"
        return Measurement(group="host", name="xid", skipped=why)
    seen = [(f["device"], int(f["code"])) for f in _XID.finditer(text)]
    bad = [(device, code) for device, code in seen if code not in _HARMLESS_XIDS]
    wrong = ""
    if bad:
        listed = ", ".join(f"Xid {code} of {device}" for device, code in sorted(set(bad))[:5])
        wrong = f"{len(bad)} messages of GPU faults since the boot: {listed}"
    return Measurement(group="host", name="xid", value=float(len(bad)), unit="messages",
                       facts={"harmless": len(seen) - len(bad)}, wrong=wrong)  # fmt: skip


def pcie(root: Path = Path("/")) -> Measurement:
    """Errors of PCIe devices, fatal or not, and GPUs whose link is narrower than it can be."""
    devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    if not devices:
        return Measurement(group="host", name="pcie", skipped="no PCIe bus is visible here")
    errors: dict[str, int] = {}
    narrow = []
    for device in devices:
        for kind in ("fatal", "nonfatal"):
            total = re.search(r"^TOTAL_ERR\S* (\d+)", _read(device / f"aer_dev_{kind}"), re.M)
            if total and int(total[1]):
                errors[device.name] = errors.get(device.name, 0) + int(total[1])
        widths = _read(device / "current_link_width"), _read(device / "max_link_width")
        is_gpu = _read(device / "class").startswith("0x0302")
        if is_gpu and all(w.isdigit() for w in widths) and int(widths[0]) < int(widths[1]):
            narrow.append(f"{device.name}: x{widths[0]} of x{widths[1]}")
    wrong = "; ".join([*(f"{name}: {number} errors" for name, number in errors.items()), *narrow])
    return Measurement(group="host", name="pcie", value=float(sum(errors.values())),
                       unit="errors", facts={"devices": len(devices)}, wrong=wrong)  # fmt: skip


def torch_import() -> Measurement:
    """Seconds in which a new process imports torch from where it is installed."""
    command = [sys.executable, "-c", "import torch"]
    began = time.monotonic()
    wrong = ""
    try:
        ended = subprocess.run(command, capture_output=True, timeout=IMPORT_WITHIN_S, check=False)
        if ended.returncode:
            lines = ended.stderr.decode(errors="replace").strip().splitlines()
            wrong = f"torch cannot be imported: {lines[-1] if lines else ended.returncode}"
    except subprocess.TimeoutExpired:
        wrong = f"torch was not imported within {IMPORT_WITHIN_S:.0f} s"
    return Measurement(group="host", name="import torch", unit="s", wrong=wrong,
                       value=time.monotonic() - began)  # fmt: skip


def clock(offset_s: Seconds, uncertain_s: Seconds) -> Measurement:
    """The clock of this node against rank 0's."""
    facts: Mapping[str, Any] = {"uncertain_s": uncertain_s}
    return Measurement(group="host", name="clock", value=abs(offset_s), unit="s", facts=facts)
