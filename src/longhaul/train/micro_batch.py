"""The largest micro-batch that fits a device's memory, chosen by what a few sizes were measured to
take; nothing is known here of devices or runs.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from longhaul.core.errors import NeedsPerson
from longhaul.core.units import Bytes, short_bytes

Measure = Callable[[int], Bytes | None]
"""Sequences of a micro-batch → most bytes that computing it takes beside what is there already
(weights and optimizer state); None if the device ran out of memory."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory that a micro-batch may take."""

    limit: Bytes
    said: str
    """What the limit is, for people, such as `90 % of the 24 GB free on the device`."""
    tried_out: bool
    """Whether the choice is computed once to be sure; costs one pass of it."""


@dataclass(frozen=True, slots=True)
class Found:
    """A choice and why."""

    sequences: int
    reason: str


def candidates(stage_sequences: Iterable[int]) -> list[int]:
    """Divisors of every stage's number of sequences, falling."""
    common = math.gcd(*stage_sequences)
    return [number for number in range(common, 0, -1) if common % number == 0]


def fixed_and_per_sequence(one: Bytes, two: Bytes) -> tuple[Bytes, Bytes]:
    """The straight line through what 1 and 2 sequences take; nowhere below either of them.

    A second sequence that seems to take nothing was not measured rightly: then everything counts as
    growing, which is the most it can be.
    """
    per_sequence = two - one if two > one else one
    return max(0, one - per_sequence), per_sequence


def find_micro_sequences(stage_sequences: Iterable[int], measure: Measure, budget: Budget) -> Found:
    """The largest candidate within the budget; NeedsPerson if not even one sequence is."""
    sizes = candidates(stage_sequences)
    one = measure(1)
    if one is None or one > budget.limit:
        taken_by_one = "more than the device has" if one is None else short_bytes(one)
        raise NeedsPerson(
            "batch.micro_sequences: auto finds nothing that fits: one sequence takes "
            f"{taken_by_one}, gradients included, beside weights and optimizer state; allowed are "
            f"{short_bytes(budget.limit)}, {budget.said}",
            "free memory on the device, make batch.sequence_length or the model smaller, or give "
            "batch.micro_sequences=1 to try it all the same",
        )
    if sizes == [1]:
        return Found(1, f"no other number divides every batch stage; {_within(one, budget)}")
    two = measure(2)
    if two is None:
        return Found(1, f"two are more than the device has; {_within(one, budget)}")
    fixed, per_sequence = fixed_and_per_sequence(one, two)
    if per_sequence == 0:
        return Found(1, f"no memory could be measured, so nothing is risked; {budget.said}")
    for sequences in sizes[:-1]:
        expected = fixed + sequences * per_sequence
        if expected > budget.limit:
            continue
        taken = measure(sequences) if budget.tried_out else expected
        if taken is not None and taken <= budget.limit:
            line = f"{short_bytes(fixed)} + {short_bytes(per_sequence)} a sequence"
            return Found(sequences, f"the largest that fits: {line}, {_within(taken, budget)}")
    return Found(1, f"no larger one fits: {_within(one, budget)}")


def _within(taken: Bytes, budget: Budget) -> str:
    return f"together {short_bytes(taken)} of {short_bytes(budget.limit)}, {budget.said}"
