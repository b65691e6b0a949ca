"""Normalisations of the residual stream.

Enters: activations [..., D]. Leaves: the same shape, normalised over D.
Never knows: where in a block it stands.

Shape suffixes: D width.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.lean import unit_rms


class LayerNorm(nn.Module):
    """Zero mean, unit variance, learned scale and optional bias (arXiv 1607.06450).

    Args:
        width: D.
        eps: added to the variance.
        scale: learn a scale; without it there is no bias either.
        bias: learn a shift.
    """

    widens = False
    """Compute in float32 whatever comes in; see `precision.to_half`."""

    def __init__(self, width: int, eps: float, scale: bool, bias: bool) -> None:
        super().__init__()
        self.shape, self.eps = (width,), eps
        self.weight = nn.Parameter(torch.empty(width)) if scale else None
        self.bias = nn.Parameter(torch.empty(width)) if scale and bias else None

    def forward(self, x_D: Tensor) -> Tensor:
        """Normalise [..., D]."""
        if self.widens:
            x_D = x_D.float()
        return functional.layer_norm(x_D, self.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Unit root mean square and a learned scale; no mean, no bias (arXiv 1910.07467).

    Args:
        width: D.
        eps: added to the mean square.
        scale: learn a scale.
    """

    widens = False
    """Compute in float32 whatever comes in; see `precision.to_half`."""

    def __init__(self, width: int, eps: float, scale: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width)) if scale else None

    def forward(self, x_D: Tensor) -> Tensor:
        """Normalise [..., D]."""
        if self.widens:
            x_D = x_D.float()
        return unit_rms(x_D, self.eps, self.weight)


NORMS: dict[str, Callable[[ModelSection, int], nn.Module]] = {
    "layernorm": lambda settings, width: LayerNorm(
        width, settings.norm_eps, settings.norm_scale, settings.bias
    ),
    "rmsnorm": lambda settings, width: RMSNorm(width, settings.norm_eps, settings.norm_scale),
}
"""Value of `model.norm` → how one is made, given the width it normalises over."""


def make_norm(settings: ModelSection, width: int | None = None) -> nn.Module:
    """The norm that the settings ask for, over `width`; the residual stream's when absent."""
    return NORMS[settings.norm](settings, width or settings.width)
