"""One residual block.

Shape suffixes: B batch, T time, D width, J heads of keys and values, K head width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.attention import Attention
from longhaul.model.carry import Carry
from longhaul.model.layers import MLP, InputMix, Norm
from longhaul.model.tap import Gauge, Tap


class Block(nn.Module):
    """A residual block, with its norms before or after.

    Pre-norm (GPT-2): x + attention(norm(x)), then x + mlp(norm(x)).
    Parallel (GPT-NeoX): x + attention(norm(x)) + mlp(norm(x)), each with its own norm.
    Post-norm (arXiv 1706.03762): norm(x + attention(x)), then norm(x + mlp(x)).
    """

    GAUGES = (
        Gauge("residual_max", "activation", "max", "largest element of the block's output"),
        Gauge("residual_min", "activation", "min", "smallest element of the block's output"),
        Gauge("residual_rms", "activation", "rms", "root mean square of it"),
        Gauge("attention_out_max_abs", "activation", "max", "largest magnitude attention adds"),
        Gauge("attention_out_rms", "activation", "rms", "root mean square of it"),
        Gauge("mlp_out_max_abs", "activation", "max", "largest magnitude the MLP adds"),
        Gauge("mlp_out_rms", "activation", "rms", "root mean square of it"),
        Attention.LOGIT_GAUGE,
    )
    """Over all elements of a micro-batch. OPT and PaLM saw these move before the loss did."""

    def __init__(self, settings: ModelSection, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.dropout = settings.dropout
        self.norms_after = settings.norm_placement == "post"
        self.parallel = settings.parallel_residual
        self.input_mix = InputMix() if settings.input_mix else None
        self.attention_norm = Norm(settings)
        self.attention = Attention(settings, layer)
        self.attention_out_norm = Norm(settings) if settings.attention_out_norm else None
        self.mlp_norm = Norm(settings)
        self.mlp = MLP(settings)
        self.mlp_out_norm = Norm(settings) if settings.mlp_out_norm else None

    def forward(self, x_BTD: Tensor, carry: Carry, extra_value_BTD: Tensor | None = None) -> Tensor:
        """Transform the residual stream, with rows of a value table [B, T, J·K] in layers that have
        one; write gauges if the tap is open.
        """
        if self.input_mix is not None:
            assert carry.input_BTD is not None
            x_BTD = self.input_mix(x_BTD, carry.input_BTD)
        read_BTD = x_BTD if self.norms_after else self.attention_norm(x_BTD)
        attended_BTD = self.attention(read_BTD, carry, extra_value_BTD)
        if self.attention_out_norm is not None:
            attended_BTD = self.attention_out_norm(attended_BTD)
        attended_BTD = self._dropped(attended_BTD)
        came_BTD = x_BTD if self.parallel else None
        x_BTD = x_BTD + attended_BTD
        if self.norms_after:
            x_BTD = self.attention_norm(x_BTD)
        read_BTD = x_BTD if came_BTD is None else came_BTD
        transformed_BTD = self.mlp(read_BTD if self.norms_after else self.mlp_norm(read_BTD))
        if self.mlp_out_norm is not None:
            transformed_BTD = self.mlp_out_norm(transformed_BTD)
        transformed_BTD = self._dropped(transformed_BTD)
        x_BTD = x_BTD + transformed_BTD
        if self.norms_after:
            x_BTD = self.mlp_norm(x_BTD)
        if carry.clamp:
            x_BTD = x_BTD.clamp(-carry.clamp, carry.clamp)
        if carry.tap is not None and carry.tap.is_open:
            self._measure(carry.tap, x_BTD, attended_BTD, transformed_BTD)
        return x_BTD

    def _dropped(self, x_BTD: Tensor) -> Tensor:
        return functional.dropout(x_BTD, self.dropout, self.training) if self.dropout else x_BTD

    @torch.no_grad()
    def _measure(self, tap: Tap, x_BTD: Tensor, attended_BTD: Tensor, mlp_BTD: Tensor) -> None:
        low, high = torch.aminmax(x_BTD)
        tap.write("residual_max", high, self.layer)
        tap.write("residual_min", low, self.layer)
        tap.write("residual_rms", _rms(x_BTD), self.layer)
        for name, out_BTD in (("attention_out", attended_BTD), ("mlp_out", mlp_BTD)):
            # One pass for both extremes: |x| would be another tensor of the stream's size.
            low, high = torch.aminmax(out_BTD)
            tap.write(f"{name}_max_abs", torch.maximum(-low, high), self.layer)
            tap.write(f"{name}_rms", _rms(out_BTD), self.layer)


def _rms(x_BTD: Tensor) -> Tensor:
    """Root mean square over all elements, summed in float32."""
    norm: Tensor = torch.linalg.vector_norm(x_BTD, dtype=torch.float32)
    return norm / math.sqrt(x_BTD.numel())
