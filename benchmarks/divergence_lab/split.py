"""Which runs may be looked at while limits are set. Fixed before any limit was.

Enters: a run's name. Leaves: `tuning`, `held-out`, `unseen` or `second`. Never knows: records or
findings.

The unseen mechanism is the drift of output logits: it is a slow growth, so detectors of growth
should see it coming, yet nothing in the tuning runs moves the gauges that it moves (the largest
output logit and the log-sum-exp), so whatever finds it was not fitted to it.

Tables of the held-out runs were printed five times while detectors changed. The second held-out set
(`second.py`) has other text and other shapes, was fixed by a hash before any of its runs was made,
and is looked at once.
"""

import hashlib
from typing import Literal

from benchmarks.divergence_lab.runs import MORE_FROM, SECOND_FROM

Part = Literal["tuning", "held-out", "unseen", "second"]
UNSEEN_MECHANISM = "output-logits"
_HELD_OUT_OF_256 = 154
"""Three fifths of the runs are held out, as intervals on them are what is published."""


def part_of(name: str) -> Part:
    """The part of the run `mechanism/number`, by a hash of its name; runs that were added after
    the split are all for tuning.
    """
    mechanism, number = name.split("/")
    if int(number) >= SECOND_FROM:
        return "second"
    if mechanism == UNSEEN_MECHANISM:
        return "unseen"
    if int(number) >= MORE_FROM:
        return "tuning"
    first_byte = hashlib.sha256(f"split 1: {name}".encode()).digest()[0]
    return "held-out" if first_byte < _HELD_OUT_OF_256 else "tuning"
