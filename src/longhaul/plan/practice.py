"""How a trainer computes what a recipe does not say: longhaul's own way, and that of others.

`longhaul plan` uses `LONGHAUL`. The others let the same arithmetic be held against what their
users published; `docs/planning.md` lists those.
"""

from dataclasses import dataclass
from typing import Literal

Gathers = Literal["micro-batch", "step", "never"]


@dataclass(frozen=True, slots=True)
class Practice:
    """What decides on time and memory beside model, batch and layout."""

    gathers: Gathers = "micro-batch"
    """How often sharded weights are gathered: in each micro-batch (FSDP), once a step (ZeRO-1 and
    SHARD_GRAD_OP), or never, because only gradients are summed (DDP)."""
    fused_attention: bool = True
    """One kernel (FlashAttention, arXiv 2205.14135), which leaves out what is masked."""
    fused_elementwise: bool = True
    """Chains of element-wise operations read and write memory once, as compiled ones do."""
    sequence_parallel: bool = True
    """Tensor ranks share norms, dropouts and the stream by position (arXiv 2205.05198)."""
    balanced_stages: bool = False
    """Embedding and head count as layers where a pipeline is cut."""
    cast_shards: bool = False
    """Weights are gathered in the format of products, and the stream has it too: no copies."""
    alternate_products: bool = False
    """Selective recomputation keeps every second matrix product alone (torchtitan)."""
    logit_tensors: int | None = None
    """Float32 tensors of the logits' size at the worst moment; None: as longhaul's own loss."""
    whole_gradients: bool = False
    """Gradients stay whole, in float32, until the last micro-batch of a pipeline."""
    reserved: bool = False
    """What is published is reserved memory: blocks that held gradients, or a layer as it was
    computed again, are there while logits and loss are at their worst."""


LONGHAUL = Practice()
TORCHTITAN = Practice(
    cast_shards=True, alternate_products=True, logit_tensors=3, whole_gradients=True, reserved=True
)
"""FSDP2's MixedPrecisionPolicy(param bf16, reduce float32); `_apply_op_sac`; loss in float32."""
MEGATRON = Practice(
    gathers="step", fused_attention=False, fused_elementwise=False, sequence_parallel=False,
    balanced_stages=True,
)  # fmt: skip
"""Megatron-LM of 2021, with ZeRO-1, before FlashAttention and sequence parallelism."""
