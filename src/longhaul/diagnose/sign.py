"""What a detector says about one record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from longhaul.core.records import Event, Severity, StepRecord


class Mark(NamedTuple):
    """A step, and the first block of data that it read."""

    step: int
    draw: int


def mark(record: StepRecord) -> Mark:
    """Where the record stands."""
    return Mark(record.step, record.draw)


@dataclass(frozen=True, slots=True)
class Sign:
    """Something is wrong at this record. Signs of one kind and subject make one incident."""

    kind: str
    severity: Severity
    first: Mark
    """Where it began, which is before it could be noticed."""
    sentence: str
    subject: str = ""
    evidence: Mapping[str, float] = field(default_factory=dict)


Signs = tuple[Sign, ...] | None
"""None: the record said nothing about what the detector judges, so nothing has ended either."""

Change = Literal["", "data", "rate"]
"""What a step brought that levels may follow: another mixture, batch, sequence length or window
(`data`), or a learning rate changed at once by a decision (`rate`)."""

HEALTHY: tuple[Sign, ...] = ()
"""The detector has judged the record and found nothing."""


class Detector:
    """A fold over the records of one line of training: no step comes twice, none is missing.

    A detector keeps a bounded state and is deterministic. After a rollback it is not asked to
    forget: `Diagnosis` makes a new one, from the records that still hold.
    """

    again: int | None = None
    """Signs after which an alarm that goes on is told again; None: never."""

    def step(self, record: StepRecord, changed: Change) -> Signs:
        """Judge one step; with `changed`, other levels are due from here on."""
        raise NotImplementedError

    def evaluated(self, event: Event) -> Signs:
        """Judge one evaluation; most detectors have nothing to say about it."""
        return None
