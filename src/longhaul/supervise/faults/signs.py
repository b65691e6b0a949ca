"""What a drill lets a node's surroundings say: its kernel's messages, and that it is gone.

Hosts are imitated in a drill, and share one kernel. What would be their own is left in files of
the run, which are there only where a drill has been laid into it.

Enters: a run's folder. Leaves: a node's messages, whether it answers.
Never knows: which faults are drilled.
"""

import json
import time
from contextlib import suppress

from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.faults.machines import parse_fault, read_done

KERNEL_LOG = "drill-kernel.jsonl"
"""In the run's folder: a line for each message, with `monotonic`, `node` and `line`."""


class DrillSigns:
    """The signs of one run.

    Args:
        folder: the run's.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._began = time.monotonic()

    def begin(self) -> None:
        """An attempt begins: what was said before does not concern it."""
        self._began = time.monotonic()

    def messages(self, node: str) -> list[str]:
        """What the kernel of a node has said since the attempt began."""
        found = []
        with suppress(FileNotFoundError):
            path = self._folder.path / KERNEL_LOG
            for line in path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, KeyError):
                    body = json.loads(line)
                    if body["node"] == node and body["monotonic"] >= self._began:
                        found.append(str(body["line"]))
        return found

    def gone(self, node: str, now: Seconds) -> bool:
        """Whether a node does not answer."""
        return any(
            done.node == node
            and done.fault.startswith("node-gone")
            and now < done.time + parse_fault(done.fault).value
            for done in read_done(self._folder)
        )
