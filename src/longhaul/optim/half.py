"""Weights in half precision, updated in float32.

Enters: weights and their gradients in any precision. Leaves: float32 tensors for an update rule
to change in place, rounded back into the weights. Never knows: the update rule.

As metaseq's memory-efficient fp16 (OPT-175B): optimizer state is float32, and there is no float32
copy of the weights beside it. An update below half a unit in a weight's last place is therefore
lost; OPT-175B trained so.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from longhaul.optim.offload import host_zeros
from longhaul.optim.sharding import own_part

_HALVES = (torch.bfloat16, torch.float16)
# Elements that are copied at once, which bounds the memory that an update borrows.
_MOST_AT_ONCE = 1 << 25


def state_like(weight: nn.Parameter, on_host: bool = False) -> Tensor:
    """Zeros for the state of a weight: of the shape of this process's part of it, in float32 if it
    is a half.
    """
    dtype = torch.float32 if weight.dtype in _HALVES else weight.dtype
    own = own_part(weight)
    if on_host:
        return host_zeros(own.shape, dtype, own.device)
    return torch.zeros_like(own, dtype=dtype, memory_format=torch.preserve_format).detach()


def gradients_of(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Own parts of their gradients: halves as new float32 tensors, others the very
    tensors.
    """
    gradients = (own_part(weight.grad) for weight in weights if weight.grad is not None)
    return [g.float() if g.dtype in _HALVES else g for g in gradients]


@contextmanager
def in_float32(weights: Sequence[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Own parts of weights, to update in place: halves as float32 copies, which are
    rounded back after.

    A copy that was not changed rounds back to the same bytes.
    """
    parts = [own_part(weight) for weight in weights]
    given = [part.float() if part.dtype in _HALVES else part for part in parts]
    yield given
    changed = [(part, copy) for part, copy in zip(parts, given, strict=True) if copy is not part]
    if changed:
        halves, copies = zip(*changed, strict=True)
        torch._foreach_copy_(halves, copies)


def portions(weights: Sequence[nn.Parameter], copies: bool = False) -> list[range]:
    """Positions of the weights to update together: all at once where nothing is copied.

    Args:
        weights: of one group.
        copies: the update copies float32 weights or their state, too.
    """
    if not copies and not any(weight.dtype in _HALVES for weight in weights):
        return [range(len(weights))]
    portions, first, elements = [], 0, 0
    for number, weight in enumerate(weights):
        own = own_part(weight).numel()
        if elements and elements + own > _MOST_AT_ONCE:
            portions.append(range(first, number))
            first, elements = number, 0
        elements += own
    return [*portions, range(first, len(weights))]
