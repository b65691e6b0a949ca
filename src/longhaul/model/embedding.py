"""Look-up tables beside the token table (pairs of tokens, values for attention), and positions:
a learned table, or rotation of queries and keys.

Shape suffixes: B batch, T time, D width, H heads, J heads of keys and values, K head width.
"""

import math

import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection, smear_weights
from longhaul.model.weights import Scalars, Table

# A universal hash (Carter and Wegman, 1979): multiply, take the remainder by a prime, then by the
# number of rows. The prime exceeds the pairs of 131,000 tokens; the product stays within 63 bits.
_PRIME = 2**34 - 41
_FACTOR = 428_115_779
_NO_TOKEN = -1


class BigramTable(Table):
    """Rows looked up by a token and the one before it (modded-nanogpt, there by an xor).

    Every pair has a row where there are enough; otherwise pairs share rows by a hash. The first
    token of a sequence has a row for standing alone. The table starts at zero, as its source has
    it: pairs that share a row do not disturb each other before they have learned.
    """

    def __init__(self, rows: int, width: int, vocab_size: int) -> None:
        super().__init__(rows, width, role="embedding", zero=True)
        self.vocab_size = vocab_size

    def forward(self, tokens_BT: Tensor, before_B1: Tensor | None = None) -> Tensor:
        """Rows [B, T, width]; `before_B1` is the token before the first of each sequence."""
        rows_BTD: Tensor = super().forward(self.row_of(tokens_BT, before_B1))
        return rows_BTD

    def row_of(self, tokens_BT: Tensor, before_B1: Tensor | None = None) -> Tensor:
        """The row of every position, from its token and the one before alone."""
        if before_B1 is None:
            before_B1 = torch.full_like(tokens_BT[:, :1], _NO_TOKEN)
        previous_BT = torch.cat((before_B1, tokens_BT[:, :-1]), dim=1)
        pair_BT = (previous_BT + 1) * self.vocab_size + tokens_BT
        if (self.vocab_size + 1) * self.vocab_size <= self.num_embeddings:
            return pair_BT
        return pair_BT % _PRIME * _FACTOR % _PRIME % self.num_embeddings


class Smear(Scalars):
    """Adds to each token's vector a share of that of the token before it: a learned strength, at
    first 0, times what the vector's first channels say (modded-nanogpt, 2025-09-18).
    """

    def __init__(self, width: int) -> None:
        super().__init__([0.0] * smear_weights(width))

    def forward(self, x_BTD: Tensor, before_B1D: Tensor | None = None) -> Tensor:
        """Smear; `before_B1D` is what stands before the first token of each sequence."""
        strength, gate_G = self.weight[0], self.weight[1:]
        if before_B1D is None:
            before_B1D = torch.zeros_like(x_BTD[:, :1])
        previous_BTD = torch.cat((before_B1D, x_BTD[:, :-1]), dim=1)
        asked_BT1 = (x_BTD[..., : len(gate_G)] * gate_G).sum(dim=-1, keepdim=True)
        share_BT1 = (strength * asked_BT1.sigmoid()).to(x_BTD.dtype)
        return torch.addcmul(x_BTD, share_BT1, previous_BTD)


class ValueTables(nn.ModuleList):
    """Token tables for attention's values in the outer layers (modded-nanogpt, 2024-12-04).

    Of n tables and L layers, table i serves layers i and L - n + i.
    """

    def __init__(self, settings: ModelSection, rows: int) -> None:
        width = settings.key_heads * settings.key_width
        super().__init__(
            Table(rows, width, role="embedding") for _ in range(settings.value_embeddings)
        )
        self._second_start = settings.layers - settings.value_embeddings

    def forward(self, tokens_BT: Tensor) -> dict[int, Tensor]:
        """Rows [B, T, J·K] by layer; layers without a table do not occur."""
        rows = [table(tokens_BT) for table in self]
        first = dict(enumerate(rows))
        return first | dict(enumerate(rows, start=self._second_start))


Rotation = tuple[Tensor, Tensor]
"""cos_TK and sin_TK of every position's angles, float32, as wide as the rotated part of a head; the
sine of a pair's first channel is negated, so that a rotation is x·cos + swapped(x)·sin."""

_STEEP = 0.001  # A ramp within one pair, as YaRN's authors have it.
_SINUSOID_BASE = 10_000.0  # arXiv 1706.03762, section 3.5


class LearnedPositions(Table):
    """A learned vector per position, added to the token's (GPT-2)."""

    def __init__(self, settings: ModelSection) -> None:
        super().__init__(settings.context, settings.width, role="position")

    def forward(self, x_BTD: Tensor, past: int = 0) -> Tensor:
        """Add the vectors of positions past … past+T-1, by a slice: its gradient is one sum."""
        return x_BTD + self.weight[past : past + x_BTD.size(1)]


class RotaryPositions(nn.Module):
    """Rotates pairs of query and key channels by an angle that grows with position.

    RoFormer (arXiv 2104.09864, section 3.2.2), channel i paired with i + K/2 as Llama and
    transformers do. Angles are float32: at position 2,000 bfloat16 cannot tell neighbours apart.
    """

    def __init__(self, settings: ModelSection) -> None:
        super().__init__()
        self.settings = settings
        self.cos_TK: Tensor
        self.sin_TK: Tensor
        for name in ("cos_TK", "sin_TK"):
            empty_TK = torch.empty(settings.context, settings.rotated_width, dtype=torch.float32)
            self.register_buffer(name, empty_TK, persistent=False)

    def fill(self) -> None:
        """Compute the angles (in float64, once) into the buffers, wherever these now live."""
        context, width = self.cos_TK.shape
        plain = _frequencies(width, self.settings.rotary_base)
        angles = _angles(context, _stretched(plain, self.settings))
        # As transformers has it: the product of queries and keys gets YaRN's factor twice.
        cos, sin = (wave * self.settings.attention_factor for wave in (angles.cos(), angles.sin()))
        self.cos_TK.copy_(torch.cat((cos, cos), dim=1))
        self.sin_TK.copy_(torch.cat((-sin, sin), dim=1))

    def forward(self, length: int, past: int = 0) -> Rotation:
        """The angles of positions past … past+length-1, computed once for all layers."""
        return self.cos_TK[past : past + length], self.sin_TK[past : past + length]


def _stretched(frequencies: Tensor, settings: ModelSection) -> Tensor:
    """Frequencies as `model.rotary_scaling` has them."""
    if settings.rotary_scaling == "none":
        return frequencies
    slow = frequencies / settings.rotary_factor
    if settings.rotary_scaling == "linear":
        return slow
    few, many = settings.rotary_slow_turns, settings.fast_turns
    if settings.rotary_scaling == "yarn":
        # By the number of a pair, not by its turns (arXiv 2309.00071, section 3.2, as published).
        begin, end = (_pair_that_turns(turns, settings) for turns in (many, few))
        if settings.rotary_truncate:
            begin, end = math.floor(begin), math.ceil(end)
        begin, end = max(begin, 0), min(end, settings.rotated_width - 1)
        number = torch.arange(len(frequencies), dtype=torch.float64)
        share = (number - begin) / (end - begin or _STEEP)
        return torch.lerp(frequencies, slow, share.clamp(0, 1))
    turns = settings.rotary_original_context * frequencies / (2 * math.pi)
    return torch.lerp(slow, frequencies, ((turns - few) / (many - few)).clamp(0, 1))


def _pair_that_turns(times: float, settings: ModelSection) -> float:
    """Number of the pair, with a fraction, that turns so often in the original context."""
    grown = math.log(settings.rotary_original_context / (2 * math.pi)) - math.log(times)
    return settings.rotated_width * grown / (2 * math.log(settings.rotary_base))


@torch.no_grad()
def fill_sinusoidal(weight: Tensor, std: float) -> None:
    """Fill a position table with the sinusoids of arXiv 1706.03762, section 3.5: channels 2i and
    2i+1 hold sine and cosine of one angle. `std` becomes their root mean square.
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
    """Rotate each channel pair of queries or keys by its position's angle, as many first channels
    as there are angles for; dtype is kept.
    """
    turned, width = rotation[0].size(-1), x_BTHK.size(-1)
    if turned < width:
        first, rest = x_BTHK.split((turned, width - turned), dim=-1)
        return torch.cat((rotate(first, rotation), rest), dim=-1)
    cos_T1K, sin_T1K = (angles_TK[:, None] for angles_TK in rotation)
    first, second = x_BTHK.float().chunk(2, dim=-1)
    swapped_BTHK = torch.cat((second, first), dim=-1)
    return torch.addcmul(x_BTHK * cos_T1K, swapped_BTHK, sin_T1K).to(x_BTHK.dtype)
