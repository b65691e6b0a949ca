"""Operations whose backward passes torch takes too many trips through memory for on a CPU.

Enters and leaves: tensors of one shape. Never knows: where in the model it stands. On other
devices, in other precisions and under a compiler torch's own operations are used, which are fused
there.

Shape suffixes: D width.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def unit_rms(x_D: Tensor, eps: float, weight_D: Tensor | None = None) -> Tensor:
    """Divide [..., D] by its root mean square over D, `eps` added to the mean square, and multiply
    by `weight_D` if there is one (arXiv 1910.07467, equation 4).
    """
    if torch.compiler.is_compiling() or not x_D.is_cpu or x_D.dtype != torch.float32:
        return functional.rms_norm(x_D, x_D.shape[-1:], weight_D, eps)
    unit_D: Tensor = _UnitRms.apply(x_D, eps)  # type: ignore[no-untyped-call]
    return unit_D if weight_D is None else unit_D * weight_D


def squared_relu(x: Tensor) -> Tensor:
    """max(0, x)² (arXiv 2109.08668)."""
    if torch.compiler.is_compiling() or not x.is_cpu:
        return functional.relu(x).square()
    squared: Tensor = _SquaredRelu.apply(x)  # type: ignore[no-untyped-call]
    return squared


class _UnitRms(torch.autograd.Function):
    """Two passes forward and four backward; torch's composite takes twice as many."""

    @staticmethod
    def forward(ctx: Any, x_D: Tensor, eps: float) -> Tensor:
        norm_1 = torch.linalg.vector_norm(x_D, dim=-1, keepdim=True)
        inverse_1 = norm_1.square_().div_(x_D.size(-1)).add_(eps).rsqrt_()
        unit_D: Tensor = x_D * inverse_1
        ctx.save_for_backward(unit_D, inverse_1)
        return unit_D

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_D: Tensor) -> tuple[Tensor, None]:
        unit_D, inverse_1 = ctx.saved_tensors
        along_1 = (gradient_D * unit_D).mean(dim=-1, keepdim=True)
        across_D: Tensor = torch.addcmul(gradient_D, unit_D, along_1, value=-1)
        return across_D.mul_(inverse_1), None


class _SquaredRelu(torch.autograd.Function):
    """Keeps max(0, x), which is 0 wherever the gradient is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = functional.relu(x)
        ctx.save_for_backward(positive)
        return positive * positive

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        doubled: Tensor = gradient * positive
        return doubled.mul_(2.0)
