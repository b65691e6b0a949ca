"""Causal self-attention.

Enters: the normalised residual stream. Leaves: what each token gathered from those before
it, same shape. Never knows: what it is added to.

Shape suffixes: B batch, T time, D width, H heads, K head width (D = H·K).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.positions import Rotation, rotate
from longhaul.model.weights import Linear

_QK_NORM_EPS = 1e-6  # Only keeps a zero vector finite; queries and keys are far larger.
# Up to this many tokens torch's attention on a CPU takes longer in bfloat16 than in float32,
# forward and backward together: five times as long at 64 (LOG.md, 2026-11-21).
_SHORT_ON_CPU = 256


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (arXiv 1706.03762, section 3.2)."""

    def __init__(self, settings: ModelSection) -> None:
        super().__init__()
        self.heads = settings.heads
        self.qk_norm = settings.qk_norm
        self.dropout = settings.dropout
        # One product for queries, keys and values; rows in that order, heads within each.
        self.qkv = Linear(settings.width, 3 * settings.width, settings.bias)
        self.out = Linear(settings.width, settings.width, settings.bias, writes_residual=True)

    def forward(self, x_BTD: Tensor, rotation: Rotation | None) -> Tensor:
        """Attend from every position to itself and those before it."""
        batch, length, width = x_BTD.shape
        # Queries and keys stay one tensor of 2·H heads as long as they are treated alike.
        both_BTHK, value_BTHK = (
            part_BTD.view(batch, length, -1, width // self.heads)
            for part_BTD in self.qkv(x_BTD).split((2 * width, width), dim=-1)
        )
        if self.qk_norm:
            both_BTHK = _unit_rms(both_BTHK)
        if rotation is not None:
            both_BTHK = rotate(both_BTHK, rotation)
        query_BHTK, key_BHTK = both_BTHK.transpose(1, 2).chunk(2, dim=1)
        gathered_BHTK = self._gather(query_BHTK, key_BHTK, value_BTHK.transpose(1, 2))
        out_BTD: Tensor = self.out(gathered_BHTK.transpose(1, 2).reshape(x_BTD.shape))
        return out_BTD

    def _gather(self, query_BHTK: Tensor, key_BHTK: Tensor, value_BHTK: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if query_BHTK.is_cpu and query_BHTK.size(2) <= _SHORT_ON_CPU:
            with torch.autocast("cpu", enabled=False):
                gathered_BHTK = functional.scaled_dot_product_attention(
                    query_BHTK.float(), key_BHTK.float(), value_BHTK.float(),
                    dropout_p=dropout, is_causal=True,
                )  # fmt: skip
            return gathered_BHTK.to(query_BHTK.dtype)
        return functional.scaled_dot_product_attention(
            query_BHTK, key_BHTK, value_BHTK, dropout_p=dropout, is_causal=True
        )


def _unit_rms(x_BTHK: Tensor) -> Tensor:
    """Divide each head's vector by its root mean square (arXiv 2302.05442, without scale)."""
    return functional.rms_norm(x_BTHK, x_BTHK.shape[-1:], eps=_QK_NORM_EPS)
