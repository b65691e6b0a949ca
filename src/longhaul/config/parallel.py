"""How many processes train together, and what each of them holds."""

from typing import Literal

from longhaul.config.section import Section, changed_at_start


class ParallelSection(Section):
    """How model and data are dealt out over the processes of a run.

    The four numbers are ways of a dimension of the device mesh; their product is the number of
    processes. Of `shard` and `replicate` the one that is absent takes what the others leave;
    where both are, all data parallelism is sharded.
    """

    replicate: int | None = changed_at_start(None, gt=0)
    """Ways in which weights are held whole side by side, or, with `shard`, copies of the shards
    (hybrid sharding)."""
    shard: int | None = changed_at_start(None, gt=0)
    """Ways in which weights, gradients and optimizer state are cut, gathered layer by layer where
    they are needed (FSDP, arXiv 2304.11277; ZeRO, arXiv 1910.02054)."""
    tensor: int = changed_at_start(1, gt=0)
    """Ways in which each layer is computed together: heads, MLPs and the vocabulary are cut
    (Megatron, arXiv 1909.08053), the rest of the stream by position (arXiv 2205.05198)."""
    pipeline: int = changed_at_start(1, gt=0)
    """Stretches of layers that are computed one after another, micro-batch by micro-batch (1F1B,
    arXiv 2006.09503)."""
    stages_per_rank: int = changed_at_start(1, gt=0)
    """With more than 1 each rank of the pipeline has so many shorter stretches, dealt out round and
    round (interleaved 1F1B, arXiv 2104.04473): less idle time, more to send."""
    reshard_after_forward: bool = changed_at_start(True)
    """Let go of a layer's gathered weights after its forward pass and gather them again for its
    backward pass (ZeRO-3): less memory, half as much again to send."""
    prefetch: int = changed_at_start(1, ge=0)
    """Layers whose weights are gathered while the one before them computes; 0: each layer is
    gathered when it is needed."""
    elastic: bool = changed_at_start(False)
    """Each process, or each `shard` of them, is a whole replica that may die and come back while
    the others train on (torchft; needs the extra `ft`). The batch is dealt out among those that
    are there, so that it stays the same."""
    reduce: Literal["float32", "weights"] = changed_at_start("float32")
    """Number format in which gradients are summed over ranks: float32, or that of the weights."""
