"""Injection points: places where a drill or a test may interfere with a run.

Nothing acts at a point unless a handler was registered in this process; an empty one costs a
look-up. Only `python -m longhaul.cli.disturbed` and tests register handlers, and
`longhaul profile`, which only looks.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

ValueT = TypeVar("ValueT")
Handler = Callable[..., Any]
"""Given the point's value, and its context by name. It may raise, wait, or return another value."""


class Point(StrEnum):
    """Every injection point. Its value is what `point` is given and gives back."""

    WORKER_START = "worker-start"
    """A worker begins, before torch is imported. Value: the run's folder."""
    BEFORE_STEP = "before-step"
    """The trainer is about to make a step. Value: the trainer. Context: `step`, its number."""
    READ_BATCH = "read-batch"
    """The trainer's batch is about to be read. Value: the request."""
    BATCH = "batch"
    """An optimizer step begins, of the trainer or of a replay. Value: its batch. Context: `step`,
    the `TrainingStep`, and `learning_rate`."""
    LOSS = "loss"
    """A micro-batch was computed forward. Value: its summed loss. Context: `step`, `sequences`."""
    BACKWARD = "backward"
    """A micro-batch was computed backward. Value: the `TrainingStep`."""
    UPDATED = "updated"
    """An optimizer step was made. Value: the `TrainingStep`."""
    OPTIMIZER_SETTINGS = "optimizer-settings"
    """Settings are about to reach the optimizer. Value: section `optim`. Context: `step`."""
    WRITE_FILE = "write-file"
    """A file of a checkpoint is about to be written. Value: its path."""
    FILES_WRITTEN = "files-written"
    """A rank has written its part of a checkpoint. Value: its files' entries in the manifest.
    Context: `folder`, not committed yet."""
    STORE_CALL = "store-call"
    """A remote store is about to be called, on the thread of the call. Value: what is asked."""
    FINDINGS = "findings"
    """The detectors have seen a record. Value: what they found."""
    KERNEL_LOG = "kernel-log"
    """The supervisor reads a kernel's messages. Value: the lines. Context: `since`, on the
    monotonic clock, and `node`, empty where a run has no nodes."""
    NODE_ANSWER = "node-answer"
    """A node was asked if it is there. Value: its answer; None: this machine. Context: `node`."""
    PRODUCT = "product"
    """A device has multiplied known matrices. Value: the bytes. Context: `device`."""
    PRODUCT_WINDOW = "product-window"
    """A device's speed is about to be looked at once more. Value: the work that is timed. Context:
    `device`; `so_far`, the share of all looks that were made."""
    PATTERN = "pattern"
    """Memory was filled with a pattern. Value: a tensor of it, which may be changed in place."""
    DISK_WRITE = "disk-write"
    """The battery is about to write to a folder. Value: the folder."""
    NODE_FACTS = "node-facts"
    """The versions and limits of this node were read. Value: the facts."""
    BEFORE_COLLECTIVE = "before-collective"
    """This rank is about to join the others in a collective of the battery. Value: its rank."""


HANDLERS: dict[Point, list[Handler]] = {}
"""Registered in this process; its forks inherit them."""


def point(at: Point, value: ValueT, **context: Any) -> ValueT:
    """The value, as the point's handlers leave it; raises whatever they raise."""
    for handler in HANDLERS.get(at, ()):
        changed = handler(value, **context)
        value = value if changed is None else changed
    return value


def register(at: Point, handler: Handler) -> None:
    """Let a handler act at a point of this process from now on, after those that do already."""
    HANDLERS.setdefault(at, []).append(handler)
