"""What machine and software a segment ran on, so that a silent change is seen; the host's memory.

OPT-175B's activation norms shifted because one JIT flag changed with a dependency; whatever can
change numbers without changing the recipe belongs in the fingerprint.
"""

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

import longhaul
from longhaul.core.addresses import scrubbed
from longhaul.core.units import Bytes

_ENVIRONMENT_PREFIXES = (
    "NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "GLOO_", "CUBLAS_",
    "TRITON_", "ATEN_", "GOMP_", "NVIDIA_",
)  # fmt: skip


def software() -> dict[str, Any]:
    """Versions of Python and every installed package, and the state of longhaul's own source."""
    return {
        "longhaul": longhaul.__version__,
        "python": platform.python_version(),
        "packages": dict(installed_packages()),
        "git": _git_state(),
    }


@cache
def installed_packages() -> Mapping[str, str]:
    """Name → version of every installed package; read once, which takes a tenth of a second."""
    # Each look at `metadata` parses the whole file.
    described = (found.metadata for found in importlib.metadata.distributions())
    versions = {each["Name"].lower(): each["Version"] for each in described if each["Name"]}
    return MappingProxyType(dict(sorted(versions.items())))


_SOURCE = Path(longhaul.__file__).parent


def _git(*arguments: str) -> bytes | None:
    try:
        ended = subprocess.run(
            ["git", "-C", str(_SOURCE), *arguments], capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None


def git_difference() -> str:
    """What differs from the commit in longhaul's own source; empty when clean."""
    return (_git("diff", "HEAD", "--", str(_SOURCE)) or b"").decode(errors="replace")


def _git_state() -> dict[str, str | None]:
    """Commit of the source tree, and a hash of what differs from it; None outside a checkout."""
    # An installed package may lie inside somebody else's checkout: only tracked source counts.
    if not _git("ls-files", "--error-unmatch", str(_SOURCE / "__init__.py")):
        return {"commit": None, "dirty": None}
    commit = _git("rev-parse", "HEAD")
    difference = _git("diff", "HEAD", "--", str(_SOURCE))
    dirty = hashlib.sha256(difference).hexdigest()[:12] if difference else None
    return {"commit": commit.decode().strip() if commit else None, "dirty": dirty}


def machine() -> dict[str, Any]:
    """The host, its processor and memory."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


_ONLY_PLACES = {"TRITON_CACHE_DIR"}


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables that change how numbers are computed or sent."""
    variables = os.environ if variables is None else variables
    return {
        k: scrubbed(variables[k])
        for k in sorted(variables)
        if k.startswith(_ENVIRONMENT_PREFIXES) and k not in _ONLY_PLACES
    }


def fingerprint(torch_facts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything outside the recipe that can change a run's numbers; torch's facts are given."""
    return {
        "software": software(),
        "machine": machine(),
        "environment": environment(),
        "torch": dict(torch_facts),
    }


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted path → (old, new) for every leaf that differs; a missing leaf is None."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    return {
        path: (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    }


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, tuple):
        yield path, list(value)
    else:
        yield path, value


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


# Limit, use, and the part of the use that the kernel gives up when it must (cached files), in
# each version of control groups.
_FILES_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_FILES_V2 = ("memory.max", "memory.current", "inactive_file")


def available_memory() -> Bytes:
    """Bytes that can be taken without swapping: the machine's, or fewer if a container has less."""
    of_machine: Bytes = psutil.virtual_memory().available
    return min([of_machine, *available_in_groups()])


def available_in_groups(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> list[Bytes]:
    """What each limited control group around this process has left; empty without limits."""
    found = (_left(folder, files) for folder, files in _groups(root, membership))
    return [left for left in found if left is not None]


def _groups(root: Path, membership: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """The group of this process and those around it; a limit of any of them binds."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, files = (root / "memory", _FILES_V1) if controllers else (root, _FILES_V2)
        inner = Path(path.lstrip("/"))
        for part in (inner, *inner.parents):
            yield top / part, files


def _left(folder: Path, files: tuple[str, str, str]) -> Bytes | None:
    limit_file, use_file, reclaimable = files
    try:
        limit = int((folder / limit_file).read_text())
        use = int((folder / use_file).read_text())
        figures = dict(
            line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines()
        )
    except (OSError, ValueError):  # not there, or the word `max`: no limit
        return None
    return max(0, limit - use + int(figures.get(reclaimable, 0)))
