"""The layers around attention: norms, the position-wise MLP, learned sums of earlier states. What
torch takes through memory too often on a CPU has an operation of its own here.

Shape suffixes: B batch, T time, D width, F inner width.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.weights import Linear, Scalars


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


def softcapped(x: Tensor, cap: float) -> Tensor:
    """Bounded: cap · tanh(x / cap), in float32 (Gemma 2, arXiv 2408.00118, section 2)."""
    return cap * torch.tanh(x.float() / cap)


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
        return positive.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        doubled: Tensor = gradient * positive
        return doubled.mul_(2.0)


class Norm(nn.Module):
    """Zero mean, unit variance, learned scale and optional bias (LayerNorm, arXiv 1607.06450); or
    unit root mean square and a learned scale, no mean, no bias (RMSNorm, arXiv 1910.07467). Over
    `width`; the residual stream's when absent.
    """

    widens = False
    """Compute in float32 whatever comes in; see `initialise.to_number_format`."""

    def __init__(self, settings: ModelSection, width: int | None = None) -> None:
        super().__init__()
        width, scale = width or settings.width, settings.norm_scale
        self.centres, self.eps = settings.norm == "layernorm", settings.norm_eps
        has_bias = scale and settings.bias and self.centres
        self.weight = nn.Parameter(torch.empty(width)) if scale else None
        self.bias = nn.Parameter(torch.empty(width)) if has_bias else None

    def forward(self, x_D: Tensor) -> Tensor:
        """Normalise [..., D]."""
        if self.widens:
            x_D = x_D.float()
        if not self.centres:
            return unit_rms(x_D, self.eps, self.weight)
        return functional.layer_norm(x_D, x_D.shape[-1:], self.weight, self.bias, self.eps)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,  # arXiv 1606.08415
    # GPT-2's; "gelu_new" in transformers.
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "relu2": squared_relu,
    "geglu": functional.gelu,  # arXiv 2002.05202, of the gate
    "geglu_tanh": partial(functional.gelu, approximate="tanh"),  # Gemma's
    "swiglu": functional.silu,  # the same, with β = 1
}
"""Value of `model.activation` → the function; a gated MLP applies it to its gate."""


class MLP(nn.Module):
    """Widen, bend, narrow; gated, one half of the wide vector bends and multiplies the other."""

    def __init__(self, settings: ModelSection) -> None:
        super().__init__()
        inner = settings.inner_width
        self.activation = ACTIVATIONS[settings.activation]
        self.gated = settings.gated
        # Gated, one product for both halves: rows of the gate, then those of what it multiplies.
        parts = (inner, inner) if self.gated else (inner,)
        self.up = Linear(settings.width, sum(parts), settings.bias, parts=parts)
        self.inner_norm = Norm(settings, inner) if settings.mlp_inner_norm else None
        zero, width = settings.zero_projections, settings.width
        self.down = Linear(inner, width, settings.bias, writes_residual=True, zero=zero)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Apply to every position alike."""
        if self.gated:
            gate_BTF, wide_BTF = self.up(x_BTD).chunk(2, dim=-1)
            inner_BTF = self.activation(gate_BTF) * wide_BTF
        else:
            inner_BTF = self.activation(self.up(x_BTD))
        if self.inner_norm is not None:
            inner_BTF = self.inner_norm(inner_BTF)
        out_BTD: Tensor = self.down(inner_BTF)
        return out_BTD


class InputMix(Scalars):
    """Mixes the stream with a share, at first 0, of the embedded input (modded-nanogpt)."""

    def __init__(self) -> None:
        super().__init__((1.0, 0.0))

    def forward(self, x_BTD: Tensor, input_BTD: Tensor) -> Tensor:
        """Mix."""
        return self.weight[0] * x_BTD + self.weight[1] * input_BTD


class Skips(Scalars):
    """Connections from the first half's blocks to the second's, last to first (modded-nanogpt,
    2024-11-10, after arXiv 1505.04597).

    Of L layers, the last ⌊L/2⌋ get the outputs of the first ⌊L/2⌋, each times a learned factor that
    begins at 1. Without a middle layer, the first of the second half reads the output of the block
    before it twice, as in the source.
    """

    def __init__(self, layers: int) -> None:
        super().__init__((1.0,) * (layers // 2))
        self._second_start = layers - layers // 2

    def forward(self, layer: int, x_BTD: Tensor, kept: list[Tensor]) -> Tensor:
        """What block `layer` reads, after `x_BTD`; `kept` are outputs that wait for their block."""
        if 1 <= layer <= len(self.start):
            kept.append(x_BTD)
        if layer < self._second_start:
            return x_BTD
        return x_BTD + self.weight[layer - self._second_start] * kept.pop()
