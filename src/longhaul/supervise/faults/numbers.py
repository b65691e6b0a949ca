"""Faults that a drill injects into a run's numbers: what they are and when they act.

Those of machines are in `machines.py`. Both are laid into the run's folder as `drill.json`,
which only a drill's worker reads (`cli/disturbed.py`). What judges the run never sees it: it has
the records, as ever.

Enters: faults. Leaves: their file, and the faults read back.
Never knows: how a fault is done to tensors (`run/drill/disturbed.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from longhaul.core.files import write_json
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.faults.machines import MachineFault, parse_fault

FaultKind = Literal[
    "nan-loss",
    "noise-tokens",
    "shuffled-tokens",
    "gradient-spike",
    "attention-logits",
    "overflow",
    "jolt",
    "frozen-position",
    "double-gradient",
    "old-betas",
    "slow-step",
    "slow-evaluation",
]
"""`nan-loss`: the loss of a micro-batch is not a number.
`noise-tokens`: text drawn evenly from all bytes. `shuffled-tokens`: the positions of a batch mixed
up, as a wrong loader does.
`gradient-spike`: all gradients times `strength`.
`attention-logits`: query and key weights grow by the share `strength` at each step.
`overflow`: one element of the gradient doubles every `strength` steps, beyond what fp16 holds.
`jolt`: every matrix moves by `strength` times its own standard deviation, at random.
`frozen-position`: no gradient reaches the position table, and it is not updated.
`double-gradient`: the gradient that flows into attention and MLPs is counted twice in the form
that trains, as where it is summed over two shards that hold all of it; plain float32 computes it
right.
`old-betas`: a change of the optimizer's settings leaves its betas as they were.
`slow-step`, `slow-evaluation`: each step, each batch of an evaluation, takes `strength` seconds
longer."""


FOREVER = 10**9


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that befalls a run. It acts where all of its conditions hold."""

    kind: FaultKind
    strength: float = 1.0
    draws: tuple[int, int] | None = None
    """In steps that read one of the blocks begin ≤ draw < end: it comes again with the data."""
    made: tuple[int, int] | None = None
    """In the steps first ≤ n < last that the trainer makes, counted from 1. A rollback turns back
    no such count: what is over by then does not come again, nor does a replay see it. What lasts
    for good (`FOREVER`) a replay sees."""
    every: int = 1
    """Of these only each so-manyth, and those right after it:"""
    lasting: int = 1
    """so many in a row."""
    above_lr: float = 0.0
    """While the learning rate is above this, whatever the data."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """All that is wrong with a worker."""

    faults: tuple[Fault, ...] = ()
    blind: bool = False
    """The judgement finds nothing: a drill must notice."""
    machine: tuple[MachineFault, ...] = ()


def lay(
    folder: RunFolder,
    faults: Sequence[Fault] = (),
    blind: bool = False,
    machine: Sequence[MachineFault] = (),
) -> None:
    """Leave a disturbance for the run's next worker, and for those that look now."""
    body = {
        "faults": [asdict(fault) for fault in faults],
        "blind": blind,
        "machine": [str(fault) for fault in machine],
    }
    write_json(disturbance_path(folder), body)


def disturbance_path(folder: RunFolder) -> Path:
    """Where a disturbance is left."""
    return folder.path / "drill.json"


def read_disturbance(folder: RunFolder) -> Disturbance:
    """What was left."""
    body = json.loads(disturbance_path(folder).read_bytes())
    return Disturbance(
        tuple(_fault(fault) for fault in body["faults"]),
        body["blind"],
        tuple(parse_fault(text) for text in body["machine"]),
    )


def _fault(body: dict[str, Any]) -> Fault:
    pairs = {key: tuple(body[key]) for key in ("draws", "made") if body[key] is not None}
    return Fault(**{**body, **pairs})
