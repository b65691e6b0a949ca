"""What faults do around a run's ranks: a kernel's messages, nodes that have gone. No torch here.

The nodes of a drill are imitated and share one kernel: their log is a file in the run's folder.
"""

import json
import os
import sys
import time
from contextlib import suppress
from functools import partial

from longhaul.core.faults import Point, register
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.run.drill.fault import parse_fault
from longhaul.run.drill.laid import read_done
from longhaul.supervise.nodes.placement import NODE
from longhaul.supervise.nodes.qualify import Answer

NO_ROUTE = 255
"""Exit code of ssh where a host cannot be reached."""
_KERNEL_LOG = "drill-kernel.jsonl"
"""A line for each message, with `monotonic`, `node` and `line`."""


def inject_around(folder: RunFolder) -> None:
    """Let a run's faults act in this process, its supervisor or a worker."""
    register(Point.KERNEL_LOG, partial(kernel_messages, folder))
    register(Point.NODE_ANSWER, partial(_no_answer, folder))
    register(Point.WORKER_START, _inject)


def kernel_messages(folder: RunFolder, lines: list[str], since: Seconds, node: str) -> list[str]:
    """A kernel's messages since a monotonic time, with those that a drill injected."""
    found = list(lines)
    with suppress(FileNotFoundError):
        for line in (folder.path / _KERNEL_LOG).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, KeyError):
                body = json.loads(line)
                if body["monotonic"] >= since and body["node"] == node:
                    found.append(str(body["line"]))
    return found


def write_kernel_log(folder: RunFolder, node: str, line: str) -> None:
    """Add a message to the kernel's of a node; empty: of this machine."""
    body = {"monotonic": time.monotonic(), "node": node, "line": line}
    with (folder.path / _KERNEL_LOG).open("a", encoding="utf-8") as log:
        log.write(json.dumps(body) + "\n")


def is_gone(folder: RunFolder, node: str) -> bool:
    """A node cannot be reached for now."""
    return any(
        done.fault.startswith("node-gone")
        and done.node == node
        and time.time() < done.time + parse_fault(done.fault).value
        for done in read_done(folder)
    )


def refuse_if_gone(folder: RunFolder) -> None:
    """End this process if its node has gone, as if the node had never been asked.

    Raises:
        SystemExit: 255.
    """
    node = os.environ.get(NODE, "")
    if is_gone(folder, node):
        name = node or "this-machine"
        print(f"ssh: connect to host {name} port 22: No route to host", file=sys.stderr)
        sys.exit(NO_ROUTE)


def _no_answer(folder: RunFolder, answer: Answer | None, node: str) -> Answer | None:
    return Answer(came=False, reason="drill") if is_gone(folder, node) else answer


def _inject(folder: RunFolder) -> None:
    refuse_if_gone(folder)
    from longhaul.run.train.worker import spin_little

    spin_little()  # before torch is imported, as in any worker
    from longhaul.run.drill.injection import inject

    inject(folder)
