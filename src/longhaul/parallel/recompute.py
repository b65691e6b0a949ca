"""Giving a module another way to compute; such as to compute again what it did not keep."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from longhaul.model.block import Block
from longhaul.model.carry import Carry
from longhaul.model.compiling import compiled_by_shape
from longhaul.model.gpt import GPT

Module = TypeVar("Module", bound=nn.Module)


def become(module: nn.Module, kind: type[Module]) -> Module:
    """Let `module` compute as a subclass of its own does; its weights and their names stay."""
    assert issubclass(kind, type(module)), f"{kind.__name__} is no {type(module).__name__}"
    module.__class__ = kind
    return cast(Module, module)


_aten, _collectives, _higher = torch.ops.aten, torch.ops._c10d_functional, torch.ops.higher_order
_PRODUCTS = (_aten.mm.default, _aten.addmm.default)
# Results that cost more to compute than to keep: products, attention, what came over a network.
_KEPT = {
    *_PRODUCTS,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    # FlexAttention within a compiled model; without one it is generated code by itself.
    *(getattr(_higher, name, None) for name in ("flex_attention", "inductor_compiled_code")),
    _collectives.all_gather_into_tensor.default,
    _collectives.reduce_scatter_tensor.default,
}


def checkpoint_activations(model: GPT, how: Literal["full", "selective"]) -> None:
    """Let every layer of `model` compute again in its backward pass (arXiv 1604.06174).

    `full` keeps a layer's input alone; `selective` keeps products and attention too and computes
    the rest again (arXiv 2205.05198, section 5). To be called before layers are sharded.
    """
    for block in model.blocks:
        assert isinstance(block, Block)
        become(block, RecomputedBlock).selective = how == "selective"


class RecomputedBlock(Block):
    """A block that keeps little of its forward pass."""

    selective: bool
    sums_stretches = False
    """Its results are sums over ranks, of which this rank keeps a stretch (`tensor.py`)."""

    def forward(self, x_BTD: Tensor, carry: Carry, extra_value_BTD: Tensor | None = None) -> Tensor:
        """See `Block.forward`; the tap is closed when this is computed again."""
        # Only where it is needed: torch.compile fails at the one that does nothing.
        contexts = _selective_in_stretches if self.sums_stretches else _selective
        more: dict[str, Any] = {"context_fn": contexts} if self.selective else {}
        out_BTD: Tensor = checkpoint(
            super().forward,
            x_BTD,
            carry,
            extra_value_BTD,
            use_reentrant=False,
            preserve_rng_state=bool(self.dropout or self.attention.dropout),
            **more,
        )
        return out_BTD


class CompiledBlocks:
    """The blocks of a model, each with its own training pass through torch.compile, in place.

    For a model that is dealt out: a graph of the whole would break at every collective that hooks
    of FSDP make between its blocks. Equal blocks make equal graphs, whose code is generated once.
    Passes that read gauges would need code for each layer, and run as they were, like evaluations.
    """

    def __init__(self, model: GPT) -> None:
        self.enabled = True
        # The first layer leaves its values to others (`model.value_residual`), once. Before torch
        # had this, a graph break, which is told, and no graph of that layer.
        if hasattr(torch._dynamo.config, "skip_fwd_side_effects_in_bwd_under_checkpoint"):
            torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True
        for block in model.blocks:
            compiled = compiled_by_shape(block.forward, alike=len(model.blocks))
            block.forward = partial(self._computed, block.forward, compiled)

    def _computed(
        self,
        plain: Callable[..., Tensor],
        compiled: Callable[..., Tensor],
        x_BTD: Tensor,
        carry: Carry,
        extra_value_BTD: Tensor | None = None,
    ) -> Tensor:
        reads_gauges = carry.tap is not None and carry.tap.is_open
        trains = torch.is_grad_enabled() and not reads_gauges
        way = compiled if self.enabled and trains else plain
        return way(x_BTD, carry, extra_value_BTD)


def _policy(context: Any, operation: Any, *given: Any, **named: Any) -> CheckpointPolicy:
    kept = operation in _KEPT
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


_selective = partial(create_selective_checkpoint_contexts, _policy)


def _selective_in_stretches() -> Any:
    """Of a layer that several ranks compute, the sums' stretches are kept. What goes into a sum is
    the second product of attention and of the MLP: as long as all stretches, and never read again.
    """
    counts = {False: 0, True: 0}  # of the pass that is computed again

    def policy(context: Any, operation: Any, *given: Any, **named: Any) -> CheckpointPolicy:
        if operation in _PRODUCTS:
            counts[context.is_recompute] += 1
            if counts[context.is_recompute] % 2 == 0:
                return CheckpointPolicy.PREFER_RECOMPUTE
        return _policy(context, operation, *given, **named)

    return create_selective_checkpoint_contexts(policy)
