"""Causal self-attention.

Enters: the normalised residual stream. Leaves: what each token gathered from those before
it, same shape. Never knows: what it is added to.

Shape suffixes: B batch, T time, D width, H heads, K head width (D = H·K).
"""

from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.model.positions import Rotation, rotate
from longhaul.model.weights import Linear

_QK_NORM_EPS = 1e-6  # Only keeps a zero vector finite; queries and keys are far larger.


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
        heads_BTHK = (*x_BTD.shape[:2], self.heads, -1)
        query_BHTK, key_BHTK, value_BHTK = (
            part.view(heads_BTHK).transpose(1, 2) for part in self.qkv(x_BTD).chunk(3, dim=-1)
        )
        if self.qk_norm:
            query_BHTK, key_BHTK = _unit_rms(query_BHTK), _unit_rms(key_BHTK)
        if rotation is not None:
            query_BHTK, key_BHTK = rotate(query_BHTK, rotation), rotate(key_BHTK, rotation)
        gathered_BHTK = functional.scaled_dot_product_attention(
            query_BHTK,
            key_BHTK,
            value_BHTK,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        out_BTD: Tensor = self.out(gathered_BHTK.transpose(1, 2).reshape(x_BTD.shape))
        return out_BTD


def _unit_rms(x_BHTK: Tensor) -> Tensor:
    """Divide each head's vector by its root mean square (arXiv 2302.05442, without scale)."""
    return functional.rms_norm(x_BHTK, x_BHTK.shape[-1:], eps=_QK_NORM_EPS)
