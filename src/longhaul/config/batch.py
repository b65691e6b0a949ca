"""How many tokens make one step, and how that changes over a run."""

from longhaul.config.section import Section, changed_at_start, fixed


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
    micro_sequences: int | None = changed_at_start(None, gt=0)
    """Sequences computed at once on one device; the whole batch when absent. Must divide every
    stage's `sequences`; the gradient is accumulated over the rest."""
    stages: tuple[BatchStage, ...] = fixed(())
    """A curriculum: later stages replace `sequences` and `sequence_length` from their step on."""
