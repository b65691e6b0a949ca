"""The whole model: tokens in, logits or summed loss out.

Enters: token numbers, and targets when a loss is wanted. Leaves: logits, or the sum of token
losses (DESIGN rule 6: dividing by the global number of targets is the caller's).
Never knows: parallelism, optimizers, data.

Shape suffixes: B batch, T time, D width, V vocabulary (padded), N targets (B·T).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import ModelSection
from longhaul.core.errors import UsageError
from longhaul.model.block import Block
from longhaul.model.norms import make_norm
from longhaul.model.positions import LearnedPositions, RotaryPositions
from longhaul.model.tap import Gauge, Tap
from longhaul.model.weights import Linear, Table

IGNORED_TARGET = -1
"""A target that is padding: it adds nothing to the loss."""


class GPT(nn.Module):
    """A decoder-only transformer. Weights are allocated, not filled: see `initialise.build`.

    Args:
        settings: shape and switches.
        vocab_size: tokens of the tokenizer; rows added by `model.vocab_multiple` are never
            predicted and get no gradient.
    """

    def __init__(self, settings: ModelSection, vocab_size: int) -> None:
        super().__init__()
        self.context = settings.context
        self.dropout = settings.dropout
        self.vocab_size = vocab_size
        rows = settings.padded_vocab(vocab_size)
        self.tokens = Table(rows, settings.width, role="embedding")
        self.positions = LearnedPositions(settings) if settings.positions == "learned" else None
        self.rotary = RotaryPositions(settings) if settings.positions == "rotary" else None
        self.blocks = nn.ModuleList(Block(settings, layer) for layer in range(settings.layers))
        self.final_norm = make_norm(settings)
        self.head = (
            None if settings.tied_head else Linear(settings.width, rows, bias=False, role="head")
        )
        self.padding_V: Tensor | None
        padding_V = torch.empty(rows) if rows != vocab_size else None
        self.register_buffer("padding_V", padding_V, persistent=False)

    @property
    def gauges(self) -> tuple[Gauge, ...]:
        """What the blocks write into an open tap, once a layer."""
        return Block.GAUGES

    def forward(
        self, tokens_BT: Tensor, targets_BT: Tensor | None = None, tap: Tap | None = None
    ) -> Tensor:
        """Logits [B, T, vocab_size], or with targets the summed loss as a float32 scalar.

        Args:
            tokens_BT: int64 token numbers, T ≤ context.
            targets_BT: the token that follows each; `IGNORED_TARGET` where there is none.
            tap: gauges are written to it while it is open.

        Raises:
            UsageError: the sequence is longer than the model's context.
        """
        logits_BTV = self._logits(tokens_BT, tap)
        if targets_BT is None:
            return logits_BTV[..., : self.vocab_size]
        # Float32 under autocast too: a sum over thousands of tokens in bfloat16 has two digits.
        logits_NV = logits_BTV.float().flatten(0, 1)
        return functional.cross_entropy(
            logits_NV, targets_BT.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
        )

    def _logits(self, tokens_BT: Tensor, tap: Tap | None) -> Tensor:
        length = tokens_BT.size(1)
        if length > self.context:
            raise UsageError(
                f"a sequence of {length} tokens does not fit the model's context {self.context}",
                "give it shorter sequences",
            )
        x_BTD: Tensor = self.tokens(tokens_BT)
        if self.positions is not None:
            x_BTD = self.positions(x_BTD)
        rotation = self.rotary(length) if self.rotary is not None else None
        if self.dropout:
            x_BTD = functional.dropout(x_BTD, self.dropout, self.training)
        for block in self.blocks:
            x_BTD = block(x_BTD, rotation, tap)
        x_BTD = self.final_norm(x_BTD)
        head_VD = self.tokens.weight if self.head is None else self.head.weight
        # The padding is -inf in the bias, so that padded rows take no probability and cost no
        # pass over the logits; slicing the logits instead would copy them.
        return functional.linear(x_BTD, head_VD, self.padding_V)
