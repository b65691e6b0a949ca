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


class LayerNorm(nn.Module):
    """Zero mean, unit variance, learned scale and optional bias (arXiv 1607.06450)."""

    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x_D: Tensor) -> Tensor:
        """Normalise [..., D]."""
        return functional.layer_norm(x_D, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Unit root mean square and a learned scale; no mean, no bias (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x_D: Tensor) -> Tensor:
        """Normalise [..., D]."""
        return functional.rms_norm(x_D, self.weight.shape, self.weight, self.eps)


NORMS: dict[str, Callable[[ModelSection], nn.Module]] = {
    "layernorm": lambda settings: LayerNorm(settings.width, settings.norm_eps, settings.bias),
    "rmsnorm": lambda settings: RMSNorm(settings.width, settings.norm_eps),
}
"""Value of `model.norm` → how one is made."""


def make_norm(settings: ModelSection) -> nn.Module:
    """The norm that the settings ask for, over the residual stream's width."""
    return NORMS[settings.norm](settings)
