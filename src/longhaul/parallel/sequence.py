"""Collectives along the sequence, with their gradients.

Between layers each tensor rank holds a stretch of every sequence; within a layer it holds all of
it, of its heads alone (arXiv 2205.05198, figure 5).

Enters and leaves: activations [B, T, …]. Never knows: weights.

Shape suffixes: B batch, T time, S a rank's stretch of it.
"""

import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives

_TIME = 1
# Renamed in torch 2.13; the same collectives as DTensor's own, which a compiler can trace.
_renamed = hasattr(collectives, "all_gather_single_autograd")
_all_gather = getattr(collectives, f"all_gather_{'single' if _renamed else 'tensor'}_autograd")
_reduce_scatter = getattr(
    collectives, f"reduce_scatter_{'single' if _renamed else 'tensor'}_autograd"
)


def gather_sequence(x_BSD: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B, T, …] on every rank from each rank's stretch; gradients of all ranks are summed."""
    x_BTD: Tensor = _all_gather(x_BSD, _TIME, group)
    return x_BTD


def sum_to_stretches(x_BTD: Tensor, group: dist.ProcessGroup) -> Tensor:
    """A rank's stretch [B, S, …] of the sum over ranks of what each has computed."""
    x_BSD: Tensor = _reduce_scatter(x_BTD, "sum", _TIME, group)
    return x_BSD


def own_stretch(x_BTD: Tensor, group: dist.ProcessGroup) -> Tensor:
    """A rank's stretch [B, S, …] of what all ranks hold alike; no collective."""
    return x_BTD.chunk(dist.get_world_size(group), dim=_TIME)[dist.get_rank(group)]
