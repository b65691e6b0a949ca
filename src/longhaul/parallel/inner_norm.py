"""Norms over a width that tensor ranks have cut (`model.mlp_inner_norm`).

Every rank has all positions and some of the width; the sums that a norm needs go over all ranks.

Enters: a rank's stretch of the width [B, T, F]. Leaves: the same, normalised over the whole.
Never knows: where in a block it stands.

Shape suffixes: F a rank's stretch of the width.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longhaul.model.layers import LayerNorm, RMSNorm
from longhaul.parallel.become import become


class CutRMSNorm(RMSNorm):
    """Unit root mean square over the width of all ranks; the scale is this rank's stretch."""

    group: dist.ProcessGroup

    def forward(self, x_F: Tensor) -> Tensor:
        """Normalise [..., F]."""
        if self.widens:
            x_F = x_F.float()
        unit_F = x_F * (_mean(x_F.float().square(), self.group) + self.eps).rsqrt().to(x_F.dtype)
        return unit_F if self.weight is None else unit_F * self.weight


class CutLayerNorm(LayerNorm):
    """Zero mean, unit variance over the width of all ranks; scale and shift are this rank's."""

    group: dist.ProcessGroup

    def forward(self, x_F: Tensor) -> Tensor:
        """Normalise [..., F]."""
        if self.widens:
            x_F = x_F.float()
        wide_F = x_F.float()
        centred_F = wide_F - _mean(wide_F, self.group)
        unit_F = centred_F * (_mean(centred_F.square(), self.group) + self.eps).rsqrt()
        unit_F = unit_F.to(x_F.dtype)
        if self.weight is not None:
            unit_F = unit_F * self.weight
        return unit_F if self.bias is None else unit_F + self.bias


def over_all_ranks(norm: nn.Module, group: dist.ProcessGroup) -> None:
    """Let a norm whose weights are cut compute its sums over the ranks of `group`."""
    if isinstance(norm, LayerNorm):
        become(norm, CutLayerNorm).group = group
    else:
        become(norm, CutRMSNorm).group = group


def _mean(x_F: Tensor, group: dist.ProcessGroup) -> Tensor:
    width = x_F.size(-1) * dist.get_world_size(group)
    total_1: Tensor = _Summed.apply(x_F.sum(dim=-1, keepdim=True), group)  # type: ignore[no-untyped-call]
    return total_1 / width


class _Summed(torch.autograd.Function):
    """The sum over ranks, which every rank uses for its own part: gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = own.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None
