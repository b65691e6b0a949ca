"""The supervisor of a drill without nodes: the kernel has also said what the drill made it say.

Where a run has nodes, the supervisor itself asks each for its own signs (`faults/signs.py`).

Enters: a run's folder. Leaves: a supervisor that reads the drill's kernel messages beside the
machine's own. Never knows: torch, or what the messages mean.
"""

import json
from contextlib import suppress
from pathlib import Path

import longhaul.supervise.supervisor
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.causes import kernel_lines
from longhaul.supervise.faults.signs import KERNEL_LOG


def kernel_log_path(folder: RunFolder) -> Path:
    """Where the kernel's messages of a drill are kept."""
    return folder.path / KERNEL_LOG


def drilled_kernel_lines(folder: RunFolder, since: Seconds) -> str:
    """What a drill made the kernel say since a monotonic time, a line each."""
    lines = []
    with suppress(FileNotFoundError):
        for line in kernel_log_path(folder).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, KeyError):
                body = json.loads(line)
                if body["monotonic"] >= since:
                    lines.append(str(body["line"]))
    return "\n".join(lines)


def let_in_kernel_log(folder: RunFolder) -> None:
    """Put the drill's kernel messages before this process."""

    def lines(since: Seconds) -> str:
        said = kernel_lines(since), drilled_kernel_lines(folder, since)
        return "\n".join(filter(None, said))

    longhaul.supervise.supervisor.kernel_lines = lines  # type: ignore[attr-defined, assignment]
