"""Look-up tables beside the token table: pairs of tokens, and values for attention.

Enters: token numbers [B, T]. Leaves: rows of a table [B, T, width]. Never knows: what they are
added to.

Shape suffixes: B batch, T time, D width, J heads of keys and values, K head width.
"""

import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.model.weights import Table

# A universal hash (Carter and Wegman, 1979): multiply, take the remainder by a prime, then by the
# number of rows. The prime exceeds the pairs of 131,000 tokens; the product stays within 63 bits.
_PRIME = 2**34 - 41
_FACTOR = 428_115_779
_NO_TOKEN = -1


class BigramTable(Table):
    """Rows looked up by a token and the one before it (modded-nanogpt, there by an xor).

    Where every pair has room there is a row for each; otherwise pairs share rows by a hash. The
    first token of a sequence has a row for standing alone. The table starts at zero, as its
    source has it: pairs that share a row do not disturb each other before they have learned.
    """

    def __init__(self, rows: int, width: int, vocab_size: int) -> None:
        super().__init__(rows, width, role="embedding", zero=True)
        self.vocab_size = vocab_size

    def forward(self, tokens_BT: Tensor, before_B1: Tensor | None = None) -> Tensor:
        """Rows [B, T, width].

        Args:
            tokens_BT: int64 token numbers.
            before_B1: the token before the first of each sequence, if there is one.
        """
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


class ValueTables(nn.ModuleList):
    """Token tables for attention's values in the outer layers (modded-nanogpt, 2024-12-04).

    Of n tables and L layers, table i serves layers i and L - n + i.
    """

    def __init__(self, settings: ModelSection, rows: int) -> None:
        width = settings.key_heads * settings.head_width
        super().__init__(
            Table(rows, width, role="embedding") for _ in range(settings.value_embeddings)
        )
        self._second_start = settings.layers - settings.value_embeddings

    def forward(self, tokens_BT: Tensor) -> dict[int, Tensor]:
        """Rows [B, T, J·K] by layer; layers without a table do not occur."""
        rows = [table(tokens_BT) for table in self]
        first = dict(enumerate(rows))
        return first | dict(enumerate(rows, start=self._second_start))
