"""How a token learns where it stands: a learned table, or rotation of queries and keys.

Enters: the residual stream (table), or queries and keys (rotation). Leaves: the same shapes.
Never knows: what attention does with them.

Shape suffixes: B batch, T time, D width, H heads, K head width.
"""

import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.model.weights import Table

Rotation = tuple[Tensor, Tensor]
"""cos_TK and sin_TK of every position's angles, float32; the sine of a pair's first channel is
negated, so that a rotation is x·cos + swapped(x)·sin."""


class LearnedPositions(Table):
    """A learned vector per position, added to the token's (GPT-2)."""

    def __init__(self, settings: ModelSection) -> None:
        super().__init__(settings.context, settings.width, role="position")

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Add the vectors of positions 0 … T-1.

        A slice, not a look-up: its gradient is one sum over the batch.
        """
        return x_BTD + self.weight[: x_BTD.size(1)]


class RotaryPositions(nn.Module):
    """Rotates pairs of query and key channels by an angle that grows with position.

    RoFormer (arXiv 2104.09864, section 3.2.2), channel i paired with i + K/2 as Llama and
    transformers do. Angles are float32 whatever the precision of the rest: at position
    2,000 bfloat16 cannot tell neighbours apart.
    """

    def __init__(self, settings: ModelSection) -> None:
        super().__init__()
        self.base = settings.rotary_base
        self.cos_TK: Tensor
        self.sin_TK: Tensor
        for name in ("cos_TK", "sin_TK"):
            empty_TK = torch.empty(settings.context, settings.head_width, dtype=torch.float32)
            self.register_buffer(name, empty_TK, persistent=False)

    def fill(self) -> None:
        """Compute the angles (in float64, once) into the buffers, wherever these now live."""
        context, head_width = self.cos_TK.shape
        exponent = torch.arange(0, head_width, 2, dtype=torch.float64) / head_width
        angles = torch.outer(torch.arange(context, dtype=torch.float64), self.base**-exponent)
        self.cos_TK.copy_(torch.cat((angles.cos(), angles.cos()), dim=1))
        self.sin_TK.copy_(torch.cat((-angles.sin(), angles.sin()), dim=1))

    def forward(self, length: int) -> Rotation:
        """The angles of positions 0 … length-1, computed once for all layers."""
        return self.cos_TK[:length], self.sin_TK[:length]


def rotate(x_BTHK: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each channel pair of queries or keys by its position's angle; dtype is kept."""
    cos_T1K, sin_T1K = (angles_TK[:, None] for angles_TK in rotation)
    first, second = x_BTHK.float().chunk(2, dim=-1)
    swapped_BTHK = torch.cat((second, first), dim=-1)
    return torch.addcmul(x_BTHK * cos_T1K, swapped_BTHK, sin_T1K).to(x_BTHK.dtype)
