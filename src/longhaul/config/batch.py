"""How many tokens make one step, and how that changes over a run."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError, PydanticKnownError

from longhaul.config.section import Section, changed_at_start, fixed


def _count_or_auto(value: Any) -> Any:
    """By hand: pydantic would tell a mistake once for every member of a union."""
    if value is None or value == "auto":
        return value
    if type(value) is not int:
        raise PydanticCustomError("count_or_auto", "neither a whole number nor auto")
    if value <= 0:
        raise PydanticKnownError("greater_than", {"gt": 0})
    return value


_CountOrAuto = Annotated[int, Field(gt=0)] | Literal["auto"] | None


class BatchStage(Section):
    """Batch shape from a step on."""

    from_step: int = fixed(ge=0)
    """First step count of this stage."""
    sequences: int = fixed(gt=0)
    """Sequences in the global batch."""
    sequence_length: int = fixed(gt=0)
    """Tokens in a sequence; must divide the longest sequence length."""


class BatchSection(Section):
    """The global batch: the same for every number of devices."""

    sequences: int = fixed(gt=0)
    """Sequences in the global batch."""
    sequence_length: int | None = fixed(None, gt=0)
    """Tokens in a sequence; the model's context when absent."""
    micro_sequences: Annotated[
        _CountOrAuto,
        PlainValidator(_count_or_auto, json_schema_input_type=_CountOrAuto),
    ] = changed_at_start(None)
    """Sequences computed at once on one device; the whole batch when absent. Must divide every
    stage's `sequences`; the gradient is accumulated over the rest.

    `auto` takes the largest that fits, measured at the run's first start with one sequence and
    with two, as long as the longest of the run: on an NVIDIA GPU within 90 % of its free memory,
    tried out once; elsewhere within a quarter of the host's available memory, as a larger one is
    no faster there. The choice is kept in the ledger, because another would give other bits: later
    starts use it whatever memory they find, until the recipe gives a number instead."""
    stages: tuple[BatchStage, ...] = fixed(())
    """A curriculum: later stages replace `sequences` and `sequence_length` from their step on."""
