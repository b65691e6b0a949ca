"""Tensor parallelism: each layer computed by several ranks together.

Heads, inner widths and the vocabulary are cut; everything else (norms, residual sums, dropout)
works on a rank's own stretch of each sequence (arXiv 1909.08053, arXiv 2205.05198). The stream is
gathered before attention and MLP, and their outputs are summed back to stretches.

Not by DTensor's plans: queries, keys and values lie in one matrix, whose share of a rank is a
stretch of each of them, which no placement says where they are unequal (grouped queries).

Enters: a filled model. Leaves: the same model with this rank's parts of its weights, and how each
was cut. Never knows: shards, losses' sums over data, optimizers.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from longhaul.core.pieces import Cut, cut_parts
from longhaul.model.block import Block
from longhaul.model.embedding import BigramTable, LearnedPositions
from longhaul.model.gpt import GPT
from longhaul.model.weights import Linear, Table
from longhaul.parallel.become import become
from longhaul.parallel.inner_norm import over_all_ranks
from longhaul.parallel.sequence import gather_sequence, own_stretch, sum_to_stretches
from longhaul.parallel.vocabulary import VocabularyLoss, VocabularyTable


def split_layers(model: GPT, group: dist.ProcessGroup) -> Mapping[str, Cut]:
    """Leave this rank's part of `model`, in place.

    Args:
        model: filled; its vocabulary may be odd. Of a stage, what it has.
        group: tensor ranks.

    Returns:
        How each weight was cut, by name; those that are not there are whole on every rank, and
        each rank computes a part of their gradient.
    """
    splitter = _Splitter(model, group)
    splitter.vocabulary()
    splitter.stream()
    for number, block in enumerate(model.blocks):
        if isinstance(block, Block):
            splitter.block(f"blocks.{number}", block)
    return splitter.cuts


class _Splitter:
    """Cuts weight by weight and keeps account."""

    def __init__(self, model: GPT, group: dist.ProcessGroup) -> None:
        self._model, self._group = model, group
        self._ways, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self.cuts: dict[str, Cut] = {}

    def vocabulary(self) -> None:
        """Token table, head and loss."""
        model = self._model
        rows = model.settings.padded_vocab(model.vocab_size)
        first, length = cut_parts((rows,), self._ways).spans[self._rank][0]
        if getattr(model, "tokens", None) is not None:
            self._cut("tokens", model.tokens, "weight", (rows,))
            tokens = become(model.tokens, VocabularyTable)
            tokens.first, tokens.group = first, self._group
        if model.head is not None:
            self._cut("head", model.head, "weight", (rows,))
        if model.padding_V is not None:
            model.padding_V = model.padding_V[first : first + length].clone()
        model.loss = VocabularyLoss(first, self._group)

    def stream(self) -> None:
        """What happens to the stream before the first and after the last block."""
        model, group = self._model, self._group
        if model.positions is not None:
            become(model.positions, StretchPositions).group = group
        if model.bigrams is not None:
            become(model.bigrams, StretchBigrams).group = group
        for number, table in enumerate(model.value_tables or ()):
            assert isinstance(table, Table)
            self._cut(f"value_tables.{number}", table, "weight", (table.weight.size(1),), axis=1)
        last = model.project_out or model.final_norm or model.blocks[-1]
        # In a pipeline the last stage's; in others it is none, or another stage's layer.
        last.register_forward_hook(lambda _, given, x_BSD: gather_sequence(x_BSD, group))

    def block(self, name: str, block: Block) -> None:
        """Attention by heads, the MLP by its inner width."""
        attention, mlp = block.attention, block.mlp
        self._into(f"{name}.attention.qkv", attention.qkv)
        self._out_of(f"{name}.attention.out", attention.out)
        if attention.head_scale is not None:
            scale = attention.head_scale
            self._cut(f"{name}.attention.head_scale", scale, "weight", (attention.heads,))
        attention.heads //= self._ways
        attention.key_heads //= self._ways
        self._into(f"{name}.mlp.up", mlp.up)
        if mlp.inner_norm is not None:
            for what, _ in list(mlp.inner_norm.named_parameters()):
                width = mlp.down.weight.size(1)
                self._cut(f"{name}.mlp.inner_norm", mlp.inner_norm, what, (width,))
            over_all_ranks(mlp.inner_norm, self._group)
        self._out_of(f"{name}.mlp.down", mlp.down)
        for module in (attention, mlp):
            module.register_forward_pre_hook(self._gather_first)

    def _gather_first(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        x_BSD, *others = given
        return gather_sequence(x_BSD, self._group), *others

    def _into(self, name: str, linear: Linear) -> None:
        """Each rank computes some of the outputs."""
        self._cut(name, linear, "weight", linear.parts)
        if linear.bias is not None:
            self._cut(name, linear, "bias", linear.parts)

    def _out_of(self, name: str, linear: Linear) -> None:
        """Each rank computes with some of the inputs."""
        self._cut(name, linear, "weight", (linear.weight.size(1),), axis=1)
        become(linear, SummedLinear).group = self._group

    def _cut(
        self, name: str, owner: nn.Module, what: str, parts: tuple[int, ...], axis: int = 0
    ) -> None:
        cut = cut_parts(parts, self._ways, axis)
        whole: nn.Parameter = getattr(owner, what)
        spans = [whole.narrow(axis, *span) for span in cut.spans[self._rank]]
        own = torch.cat(spans, dim=axis).detach()
        setattr(owner, what, nn.Parameter(own, requires_grad=whole.requires_grad))
        self.cuts[f"{name}.{what}"] = cut


class SummedLinear(Linear):
    """A linear map of which each rank has some of the inputs; a stretch of the sum comes out."""

    group: dist.ProcessGroup

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Map [B, T, into] to a stretch [B, S, out]; the bias is added once, to the sum."""
        if self.narrows:
            x_BTD = x_BTD.to(self.weight.dtype)
        x_BSD = sum_to_stretches(functional.linear(x_BTD, self.weight), self.group)
        return x_BSD if self.bias is None else x_BSD + self.bias.to(x_BSD.dtype)


class StretchPositions(LearnedPositions):
    """Positions of a rank's stretch."""

    group: dist.ProcessGroup

    def forward(self, x_BTD: Tensor, past: int = 0) -> Tensor:
        """Add the vectors of the stretch's positions."""
        return super().forward(x_BTD, past + dist.get_rank(self.group) * x_BTD.size(1))


class StretchBigrams(BigramTable):
    """Rows of pairs in a rank's stretch; every rank has the whole table."""

    group: dist.ProcessGroup

    def forward(self, tokens_BT: Tensor, before_B1: Tensor | None = None) -> Tensor:
        """Rows [B, S, width]."""
        row_BT = self.row_of(tokens_BT, before_B1)
        return functional.embedding(own_stretch(row_BT, self.group), self.weight)
