"""Memory of the host that this process may still take.

Enters: psutil's view of the machine, and the limits of the control groups this process is in.
Leaves: bytes. Never knows: devices, or what the memory is wanted for.
"""

from collections.abc import Iterator
from pathlib import Path

import psutil

from longhaul.core.units import Bytes

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
    """The group of this process and those around it; a limit of any of them binds.

    Inside a container the path told may not exist: then its mount's root is the group itself.
    """
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
