"""Orders of rank 0 to the other ranks at step boundaries, each a value of its own type: given in
`coordinator.py`, carried out in `run/train/follower.py`.
"""

from dataclasses import dataclass
from typing import Literal

from longhaul.core.records import Decision

Compares = Literal["weights", "slot"]
"""What ranks are compared in: the weights they hold alike, or what they compute from one batch."""


class Order:
    """Something that all ranks do together."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Apply(Order):
    """Obey a decision."""

    decision: Decision


@dataclass(frozen=True, slots=True)
class RollBack(Order):
    """Go back to the checkpoint that rank 0 finds."""


@dataclass(frozen=True, slots=True)
class RollBackInMemory(Order):
    """Go back to the snapshot of a step, on all ranks or on none."""

    step: int


@dataclass(frozen=True, slots=True)
class SaveEvery(Order):
    """Save every so many steps, where the interval is `auto`."""

    steps: int


@dataclass(frozen=True, slots=True)
class Stop(Order):
    """Make no further step."""


@dataclass(frozen=True, slots=True)
class Evaluate(Order):
    """Measure validation loss, windows dealt out."""

    most_tokens: int | None


@dataclass(frozen=True, slots=True)
class Save(Order):
    """Save; every rank writes its own shards."""


@dataclass(frozen=True, slots=True)
class Compare(Order):
    """Compare all ranks."""

    what: Compares


@dataclass(frozen=True, slots=True)
class WriteSample(Order):
    """Generate the text that the recipe asks for; each rank holds a part of the model."""


@dataclass(frozen=True, slots=True)
class WaitForStore(Order):
    """Wait while rank 0 waits for a store."""


@dataclass(frozen=True, slots=True)
class Accuse(Order):
    """End of silent corruption, with the same last words on all ranks."""

    sentence: str


@dataclass(frozen=True, slots=True)
class End(Order):
    """End as rank 0 does."""

    exit_code: int
