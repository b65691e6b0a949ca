"""The whole model: tokens in, logits or summed loss out.

Shape suffixes: B batch, T time, S time with the positions that a cache holds, R some of B·T,
D width, V vocabulary (padded).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from longhaul.config.model import LOGITS_AT_ONCE, ModelSection, rows_at_once
from longhaul.core.errors import UsageError
from longhaul.model.block import Block
from longhaul.model.carry import Carry, KeyValueCache
from longhaul.model.chunked_loss import Head, LossInPlace, chunked_loss
from longhaul.model.embedding import (
    BigramTable,
    LearnedPositions,
    RotaryPositions,
    Smear,
    ValueTables,
)
from longhaul.model.head import (
    OUTPUT_GAUGES,
    Further,
    SummedLoss,
    further_targets,
    measure,
)
from longhaul.model.layers import Norm, Skips, softcapped
from longhaul.model.masks import Window, make_sight
from longhaul.model.tap import Tap
from longhaul.model.weights import Linear, Table


class GPT(nn.Module):
    """A decoder-only transformer. Weights are allocated, not filled: see `initialise.build`. A
    switch that is off leaves no weight and no operation behind. Rows that `model.vocab_multiple`
    adds are never predicted; `end_of_text` ends a document, for
    `model.document_mask` and `model.ahead_stages`.
    """

    gauges = (*Block.GAUGES, *OUTPUT_GAUGES)
    """What is written into an open tap: by each block, and once for the model."""

    def __init__(
        self, settings: ModelSection, vocab_size: int, end_of_text: int | None = None
    ) -> None:
        super().__init__()
        self.widens = False
        """The residual stream is float32 although the weights are not: see `initialise.py`."""
        self.settings = settings
        self.skips_masked = True
        """FlexAttention, compiled for each length, serves masks where it can."""
        self.residual_clamp = settings.residual_clamp
        """In force; a live run may change it between two steps."""
        self.ahead = settings.ahead_at(0)
        """Weights of the tokens after the next one, in force as well."""
        self.loss_kernel: LossInPlace | None = None
        """Takes the loss of training's logits, if there is one for the device (`kernel_for`)."""
        self.vocab_size = vocab_size
        self.end_of_text = end_of_text
        own = settings.embedding_dropout
        self.embedding_dropout = settings.dropout if own is None else own
        rows = settings.padded_vocab(vocab_size)
        narrow, width = settings.table_width, settings.width
        self.tokens = Table(rows, narrow, role="embedding")
        self.smear = Smear(narrow) if settings.token_smear else None
        self.bigrams = (
            BigramTable(settings.bigram_rows, narrow, vocab_size) if settings.bigram_rows else None
        )
        self.project_in = Linear(narrow, width, bias=False) if narrow != width else None
        self.positions = LearnedPositions(settings) if settings.positions == "learned" else None
        self.rotary = RotaryPositions(settings) if settings.positions == "rotary" else None
        self.embedding_norm = Norm(settings) if settings.embedding_norm else None
        self.value_tables = ValueTables(settings, rows) if settings.value_embeddings else None
        self.blocks = nn.ModuleList(Block(settings, layer) for layer in range(settings.layers))
        self.skips = Skips(settings.layers) if settings.unet_skips else None
        # Post-norm blocks end with a norm of their own.
        self.final_norm = Norm(settings) if settings.norm_placement == "pre" else None
        self.project_out = Linear(width, narrow, bias=False) if narrow != width else None
        self.head = (
            None
            if settings.tied_head
            else Linear(narrow, rows, bias=False, role="head", zero=settings.zero_head)
        )
        self.padding_V: Tensor | None
        padding_V = torch.empty(rows) if rows != vocab_size else None
        self.register_buffer("padding_V", padding_V, persistent=False)
        self.loss = SummedLoss()

    def new_cache(self, batch: int) -> KeyValueCache:
        """An empty cache for `batch` sequences, where the model's weights are."""
        weight = self.tokens.weight
        return KeyValueCache(self.settings, batch, weight.device, weight.dtype)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        *,
        tap: Tap | None = None,
        window: Window = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Logits [B, T, vocab_size], or with targets the summed loss as a float32 scalar, which
        includes `model.z_loss` in training mode alone: evaluations of recipes can be compared.

        Args:
            tokens_BT: int64 token numbers; UsageError if there are more than the model's context.
            targets_BT: the token that follows each; `IGNORED_TARGET` where there is none.
            tap: gauges are written to it while it is open.
            window: positions that windowed layers attend to, instead of `model.window`.
            cache: keys and values of the positions before, which count as context; extended here.
        """
        x_BTD = self._before_head(self._transformed(tokens_BT, tap, window, cache))
        if targets_BT is None:
            return self._logits(x_BTD)[..., : self.vocab_size]
        return self._summed_loss(x_BTD, targets_BT, tap)

    def _transformed(
        self,
        tokens_BT: Tensor,
        tap: Tap | None,
        window: Window,
        cache: KeyValueCache | None,
    ) -> Tensor:
        """The residual stream after the last block."""
        length, past = tokens_BT.size(1), cache.length if cache is not None else 0
        if past + length > self.settings.context:
            raise UsageError(
                f"a sequence of {past + length} tokens does not fit the model's context "
                f"{self.settings.context}",
                "give it shorter sequences",
            )
        tokens_BS = cache.see(tokens_BT) if cache is not None else tokens_BT
        x_BTD = self._embedded(tokens_BT, tokens_BS[:, past - 1 : past] if past else None, past)
        carry = Carry(
            sight=make_sight(
                self.settings, tokens_BS, window, past, self.end_of_text, self.skips_masked
            ),
            rotation=self.rotary(length, past) if self.rotary is not None else None,
            tap=tap,
            cache=cache,
            input_BTD=x_BTD if self.settings.input_mix else None,
            clamp=self.residual_clamp,
        )
        values = self.value_tables(tokens_BT) if self.value_tables is not None else {}
        kept: list[Tensor] = []
        for layer, block in enumerate(self.blocks):
            if self.skips is not None:
                x_BTD = self.skips(layer, x_BTD, kept)
            x_BTD = block(x_BTD, carry, values.get(layer))
        return x_BTD

    def _embedded(self, tokens_BT: Tensor, before_B1: Tensor | None, past: int) -> Tensor:
        """What the first block reads, of tokens that stand after `past` others."""
        x_BTD: Tensor = self.tokens(tokens_BT)
        if self.smear is not None:
            x_BTD = self.smear(x_BTD, None if before_B1 is None else self.tokens(before_B1))
        if self.bigrams is not None:
            x_BTD = x_BTD + self.bigrams(tokens_BT, before_B1)
        if self.settings.embedding_scale != 1.0:
            x_BTD = x_BTD * self.settings.embedding_scale
        if self.project_in is not None:
            x_BTD = self.project_in(x_BTD)
        if self.widens:
            x_BTD = x_BTD.float()
        if self.positions is not None:
            x_BTD = self.positions(x_BTD, past)
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        if self.embedding_dropout:
            x_BTD = functional.dropout(x_BTD, self.embedding_dropout, self.training)
        return x_BTD

    def _summed_loss(self, x_BTD: Tensor, targets_BT: Tensor, tap: Tap | None) -> Tensor:
        z_loss = self.settings.z_loss if self.training else 0.0
        padded_vocab, tokens = self.settings.padded_vocab(self.vocab_size), targets_BT.numel()
        reads_gauges = tap is not None and tap.is_open
        further: tuple[Further, ...] = ()
        if self.ahead and self.training and torch.is_grad_enabled():
            further = further_targets(targets_BT, self.ahead, self.end_of_text)
        loss: Tensor
        if torch.is_grad_enabled():
            in_place = self.loss_kernel is not None
            rows = rows_at_once(tokens, padded_vocab, x_BTD.is_cpu, in_place)
            # Before the loss is scaled, which float16 needs; and a rank that has some columns knows
            # the softmax after all others.
            takes_early = self.loss.has_all_columns and self._head_VD().dtype != torch.float16
            if (rows < tokens or in_place) and takes_early:
                head = Head(
                    self._head_VD(), self.padding_V, self.settings.logit_softcap, z_loss,
                    self.loss_kernel,
                )  # fmt: skip
                loss, of_targets = chunked_loss(
                    x_BTD.flatten(0, 1), targets_BT.flatten(), head, rows, reads_gauges, further
                )
                if tap is not None and reads_gauges:
                    measure(tap, targets_BT, of_targets)
                return loss
        # Without a backward pass, logits are let go of chunk by chunk: whole they would take 33 GB
        # at 32 sequences of 2,048 tokens and GPT-2's vocabulary. Chunks depend on shapes alone, as
        # tensor ranks, whose losses are collectives, must make the same.
        rows = max(1, LOGITS_AT_ONCE // padded_vocab)
        if torch.is_grad_enabled() or reads_gauges or tokens <= rows:
            logits_BTV = self._logits(x_BTD)
            loss = self.loss(logits_BTV, targets_BT, z_loss, tap)
            for weight, after_BT in further:
                more = weight * self.loss(logits_BTV, after_BT)
                loss = loss + (more - more.detach())
            return loss
        chunks = zip(x_BTD.flatten(0, 1).split(rows), targets_BT.flatten().split(rows), strict=True)
        losses = [
            self.loss(self._logits(x_RD[None]), targets_R[None], z_loss)
            for x_RD, targets_R in chunks
        ]
        return torch.stack(losses).sum()

    def _head_VD(self) -> Tensor:
        return self.tokens.weight if self.head is None else self.head.weight

    def _before_head(self, x_BTD: Tensor) -> Tensor:
        """What the head reads of the last block's stream."""
        if self.final_norm is not None:
            x_BTD = self.final_norm(x_BTD)
        if self.project_out is not None:
            x_BTD = self.project_out(x_BTD)
        return x_BTD

    def _logits(self, x_BTD: Tensor) -> Tensor:
        """Logits [B, T, V] of what the head reads, padding of the vocabulary at -inf."""
        head_VD = self._head_VD()
        if self.widens:
            x_BTD = x_BTD.to(head_VD.dtype)
        if not self.settings.logit_softcap:
            # The padding is -inf in the bias, so that padded rows take no probability and cost
            # no pass over the logits; slicing the logits instead would copy them.
            return functional.linear(x_BTD, head_VD, self.padding_V)
        logits_BTV = softcapped(functional.linear(x_BTD, head_VD), self.settings.logit_softcap)
        # After the cap, which would make -inf finite.
        return logits_BTV if self.padding_V is None else logits_BTV + self.padding_V
