"""Tensor parallelism: each layer computed by several ranks together.

Heads, inner widths and the vocabulary are cut; everything else works on a rank's own stretch of
each sequence, gathered before attention and MLP (arXiv 1909.08053, arXiv 2205.05198). No DTensor
placement says what a rank has of a fused matrix of unequal queries, keys and values.

Shape suffixes: B batch, T time, S a rank's stretch of it, D width, F a rank's stretch of the inner
width, V a rank's rows of the vocabulary, N targets (B·T).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import _functional_collectives as collectives
from torch.nn import functional

from longhaul.core.pieces import Cut, cut_parts
from longhaul.model.block import Block
from longhaul.model.embedding import BigramTable, LearnedPositions
from longhaul.model.gpt import GPT
from longhaul.model.head import IGNORED_TARGET, OfTargets, SummedLoss, measure
from longhaul.model.layers import Norm
from longhaul.model.tap import Tap
from longhaul.model.weights import Linear, Table
from longhaul.parallel.recompute import RecomputedBlock, become

_TIME = 1
# Renamed in torch 2.13; the same collectives as DTensor's own, which a compiler can trace.
_renamed = hasattr(collectives, "all_gather_single_autograd")
_all_gather = getattr(collectives, f"all_gather_{'single' if _renamed else 'tensor'}_autograd")
_reduce_scatter = getattr(
    collectives, f"reduce_scatter_{'single' if _renamed else 'tensor'}_autograd"
)


def gather_sequence(x_BSD: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[B, T, …] on every rank from each rank's stretch; gradients of all ranks are summed."""
    x_BTD: Tensor = _all_gather(x_BSD, _TIME, group)
    return x_BTD


class _GatheredNarrow(torch.autograd.Function):
    """`gather_sequence` in another format: what is sent, and kept for the product, is half as
    large. Gradients are summed in the format that came.
    """

    @staticmethod
    def forward(ctx: Any, x_BSD: Tensor, dtype: torch.dtype, group: dist.ProcessGroup) -> Tensor:
        ctx.dtype, ctx.group = x_BSD.dtype, group
        return gather_sequence(x_BSD.to(dtype), group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_BTD: Tensor) -> tuple[Tensor, None, None]:
        # Stretch by stretch and in that format at one go.
        ways = dist.get_world_size(ctx.group)
        gradient_WBSD = gradient_BTD.unflatten(_TIME, (ways, -1)).movedim(_TIME, 0)
        wide_WBSD = gradient_WBSD.to(ctx.dtype, memory_format=torch.contiguous_format)
        gradient_BSD: Tensor = _reduce_scatter(wide_WBSD.flatten(0, 1), "sum", 0, ctx.group)
        return gradient_BSD, None, None


def sum_to_stretches(x_BTD: Tensor, group: dist.ProcessGroup) -> Tensor:
    """A rank's stretch [B, S, …] of the sum over ranks of what each has computed."""
    x_BSD: Tensor = _reduce_scatter(x_BTD, "sum", _TIME, group)
    return x_BSD


class CutNorm(Norm):
    """Normalises over the width of all ranks; scale and shift are this rank's stretch."""

    group: dist.ProcessGroup

    def forward(self, x_F: Tensor) -> Tensor:
        """Normalise [..., F]."""
        if self.widens:
            x_F = x_F.float()
        wide_F = x_F.float()
        if self.centres:
            centred_F = wide_F - _mean(wide_F, self.group)
            unit_F = centred_F * (_mean(centred_F.square(), self.group) + self.eps).rsqrt()
            unit_F = unit_F.to(x_F.dtype)
        else:
            unit_F = x_F * (_mean(wide_F.square(), self.group) + self.eps).rsqrt().to(x_F.dtype)
        if self.weight is not None:
            unit_F = unit_F * self.weight
        return unit_F if self.bias is None else unit_F + self.bias


def _mean(x_F: Tensor, group: dist.ProcessGroup) -> Tensor:
    width = x_F.size(-1) * dist.get_world_size(group)
    total_1: Tensor = _Summed.apply(x_F.sum(dim=-1, keepdim=True), group)  # type: ignore[no-untyped-call]
    return total_1 / width


class _Summed(torch.autograd.Function):
    """The sum over ranks, which every rank uses for its own part: gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        total = own.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class VocabularyTable(Table):
    """A token table of which this rank has the rows from `first` on; cut evenly or not."""

    first: int
    group: dist.ProcessGroup

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Rows of this rank's stretch of each sequence."""
        row_BT = tokens_BT - self.first
        here_BT = (row_BT >= 0) & (row_BT < self.weight.size(0))
        found_BTD = functional.embedding(row_BT.where(here_BT, 0), self.weight)
        return sum_to_stretches(found_BTD * here_BT.unsqueeze(-1), self.group)


class VocabularyLoss(SummedLoss):
    """The loss from logits of which each rank has some columns, from token `first` on."""

    has_all_columns = False

    def __init__(self, first: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.first, self._group = first, group

    def forward(
        self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0, tap: Tap | None = None
    ) -> Tensor:
        """See `SummedLoss`."""
        logits_NV, targets_N = logits_BTV.float().flatten(0, 1), targets_BT.flatten()
        counted_N = targets_N != IGNORED_TARGET
        loss_N, log_normaliser_N = _Losses.apply(  # type: ignore[no-untyped-call]
            logits_NV, targets_N - self.first, self._group
        )
        loss_N = loss_N.where(counted_N, 0.0)
        if tap is not None and tap.is_open:
            largest = logits_BTV.detach().amax()
            measure(tap, targets_BT, OfTargets(loss_N, log_normaliser_N, largest))
        loss: Tensor = loss_N.sum()
        if z_loss:
            loss = loss + z_loss * (log_normaliser_N.square() * counted_N).sum()
        return loss


class _Losses(torch.autograd.Function):
    """Cross-entropy and log normaliser of each target, by two small all-reduces."""

    @staticmethod
    def forward(
        ctx: Any, logits_NV: Tensor, column_N: Tensor, group: dist.ProcessGroup
    ) -> tuple[Tensor, Tensor]:
        largest_N = logits_NV.amax(dim=-1)
        dist.all_reduce(largest_N, op=dist.ReduceOp.MAX, group=group)
        shifted_NV = logits_NV - largest_N[:, None]
        here_N = (column_N >= 0) & (column_N < logits_NV.size(1))
        column_N1 = column_N.where(here_N, 0)[:, None]
        # A column that is not here may be padding, at -inf.
        target_N = shifted_NV.gather(1, column_N1).squeeze(1).where(here_N, 0.0)
        share_NV = shifted_NV.exp_()
        sums_2N = torch.stack((share_NV.sum(dim=-1), target_N))
        dist.all_reduce(sums_2N, group=group)
        share_NV.div_(sums_2N[0][:, None])
        log_sum_N = sums_2N[0].log()
        ctx.save_for_backward(share_NV, column_N1, here_N)
        return log_sum_N - sums_2N[1], log_sum_N + largest_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_N: Tensor, log_normaliser_N: Tensor) -> tuple[Tensor, None, None]:
        share_NV, column_N1, here_N = ctx.saved_tensors
        gradient_NV: Tensor = share_NV * (loss_N + log_normaliser_N)[:, None]
        gradient_NV.scatter_add_(1, column_N1, -(loss_N * here_N)[:, None])
        return gradient_NV, None, None


def split_layers(model: GPT, group: dist.ProcessGroup) -> Mapping[str, Cut]:
    """Leave this rank's part of `model`, in place; how each weight was cut, by name.

    Those that are not there are whole on every rank, which computes a part of their gradient.
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
            # Every rank has all positions and some of the width: sums go over all ranks.
            become(mlp.inner_norm, CutNorm).group = self._group
        self._out_of(f"{name}.mlp.down", mlp.down)
        attention.register_forward_pre_hook(partial(self._gather_first, attention.qkv))
        mlp.register_forward_pre_hook(partial(self._gather_first, mlp.up))
        if isinstance(block, RecomputedBlock):
            block.sums_stretches = True

    def _gather_first(
        self, reader: Linear, module: nn.Module, given: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        x_BSD, *others = given
        dtype = reader.read_as(x_BSD)
        if dtype == x_BSD.dtype:
            return gather_sequence(x_BSD, self._group), *others
        return _GatheredNarrow.apply(x_BSD, dtype, self._group), *others  # type: ignore[no-untyped-call]

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

    def forward(self, x_BTD: Tensor, history: int = 0) -> Tensor:
        """Add the vectors of the stretch's positions."""
        return super().forward(x_BTD, history + dist.get_rank(self.group) * x_BTD.size(1))


class StretchBigrams(BigramTable):
    """Rows of pairs in a rank's stretch; every rank has the whole table."""

    group: dist.ProcessGroup

    def forward(self, tokens_BT: Tensor, before_B1: Tensor | None = None) -> Tensor:
        """Rows [B, S, width]."""
        row_BT = self.row_of(tokens_BT, before_B1)
        rows = row_BT.chunk(dist.get_world_size(self.group), dim=_TIME)
        return functional.embedding(rows[dist.get_rank(self.group)], self.weight)
