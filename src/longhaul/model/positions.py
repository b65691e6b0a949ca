"""How a token learns where it stands: a learned table, or rotation of queries and keys.

Enters: the residual stream (table), or queries and keys (rotation). Leaves: the same shapes.
Never knows: what attention does with them.

Shape suffixes: B batch, T time, D width, H heads, K head width.
"""

import math

import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.model.weights import Table

Rotation = tuple[Tensor, Tensor]
"""cos_TK and sin_TK of every position's angles, float32; the sine of a pair's first channel is
negated, so that a rotation is x·cos + swapped(x)·sin."""

_SINUSOID_BASE = 10_000.0  # arXiv 1706.03762, section 3.5
# Llama 3.1's published configuration ("rope_scaling"): a pair that turns less than once in the
# original context is stretched in full, one that turns more than four times not at all.
_LLAMA3_LOW_TURNS = 1.0
_LLAMA3_HIGH_TURNS = 4.0


class LearnedPositions(Table):
    """A learned vector per position, added to the token's (GPT-2)."""

    def __init__(self, settings: ModelSection) -> None:
        super().__init__(settings.context, settings.width, role="position")

    def forward(self, x_BTD: Tensor, past: int = 0) -> Tensor:
        """Add the vectors of positions past … past+T-1.

        A slice, not a look-up: its gradient is one sum over the batch.
        """
        return x_BTD + self.weight[past : past + x_BTD.size(1)]


class RotaryPositions(nn.Module):
    """Rotates pairs of query and key channels by an angle that grows with position.

    RoFormer (arXiv 2104.09864, section 3.2.2), channel i paired with i + K/2 as Llama and
    transformers do. Angles are float32 whatever the precision of the rest: at position
    2,000 bfloat16 cannot tell neighbours apart.
    """

    def __init__(self, settings: ModelSection) -> None:
        super().__init__()
        self.base = settings.rotary_base
        self.scaling = settings.rotary_scaling
        self.factor = settings.rotary_factor
        self.original_context = settings.rotary_original_context
        self.cos_TK: Tensor
        self.sin_TK: Tensor
        for name in ("cos_TK", "sin_TK"):
            empty_TK = torch.empty(settings.context, settings.head_width, dtype=torch.float32)
            self.register_buffer(name, empty_TK, persistent=False)

    def fill(self) -> None:
        """Compute the angles (in float64, once) into the buffers, wherever these now live."""
        context, head_width = self.cos_TK.shape
        angles = _angles(context, self._stretched(_frequencies(head_width, self.base)))
        self.cos_TK.copy_(torch.cat((angles.cos(), angles.cos()), dim=1))
        self.sin_TK.copy_(torch.cat((-angles.sin(), angles.sin()), dim=1))

    def _stretched(self, frequencies: Tensor) -> Tensor:
        """Frequencies as `model.rotary_scaling` has them."""
        if self.scaling == "none":
            return frequencies
        if self.scaling == "linear":
            return frequencies / self.factor
        turns = self.original_context * frequencies / (2 * math.pi)
        kept = (turns - _LLAMA3_LOW_TURNS) / (_LLAMA3_HIGH_TURNS - _LLAMA3_LOW_TURNS)
        return torch.lerp(frequencies / self.factor, frequencies, kept.clamp(0, 1))

    def forward(self, length: int, past: int = 0) -> Rotation:
        """The angles of positions past … past+length-1, computed once for all layers."""
        return self.cos_TK[past : past + length], self.sin_TK[past : past + length]


@torch.no_grad()
def fill_sinusoidal(weight: Tensor, std: float) -> None:
    """Fill a position table with the sinusoids of arXiv 1706.03762, section 3.5, with root mean
    square `std`.

    Channels 2i and 2i+1 hold sine and cosine of one angle; their mean square is 1/2.
    """
    context, width = weight.shape
    angles = _angles(context, _frequencies(width, _SINUSOID_BASE))
    waves = torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :width]
    weight.copy_(waves * (math.sqrt(2) * std))


def _frequencies(width: int, base: float) -> Tensor:
    """Angle that each of ⌈width/2⌉ pairs turns by from position to position, float64."""
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def _angles(context: int, frequencies: Tensor) -> Tensor:
    """Angles [context, pairs] of positions 0 … context-1, float64."""
    return torch.outer(torch.arange(context, dtype=torch.float64), frequencies)


def rotate(x_BTHK: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each channel pair of queries or keys by its position's angle; dtype is kept."""
    cos_T1K, sin_T1K = (angles_TK[:, None] for angles_TK in rotation)
    first, second = x_BTHK.float().chunk(2, dim=-1)
    swapped_BTHK = torch.cat((second, first), dim=-1)
    return torch.addcmul(x_BTHK * cos_T1K, swapped_BTHK, sin_T1K).to(x_BTHK.dtype)
