"""The vocabulary cut by tensor ranks: looked up, and predicted, without ever being whole.

A vocabulary that the ranks do not divide is cut unevenly.

Enters: token numbers, or a rank's columns of the logits. Leaves: rows of the token table; the
summed loss, the same on all tensor ranks. Never knows: what computed the logits.

Shape suffixes: B batch, T time, V a rank's rows of the vocabulary, N targets (B·T).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longhaul.model.head import IGNORED_TARGET, SummedLoss
from longhaul.model.tap import Tap
from longhaul.model.weights import Table
from longhaul.parallel.sequence import sum_to_stretches


class VocabularyTable(Table):
    """A token table of which this rank has the rows from `first` on."""

    first: int
    group: dist.ProcessGroup

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Rows of this rank's stretch of each sequence."""
        row_BT = tokens_BT - self.first
        here_BT = (row_BT >= 0) & (row_BT < self.weight.size(0))
        found_BTD = functional.embedding(row_BT.where(here_BT, 0), self.weight)
        return sum_to_stretches(found_BTD * here_BT.unsqueeze(-1), self.group)


class VocabularyLoss(SummedLoss):
    """The loss from logits of which each rank has some columns.

    Args:
        first: token of this rank's first column.
        group: tensor ranks.
    """

    def __init__(self, first: int, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.first, self._group = first, group

    def forward(
        self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0, tap: Tap | None = None
    ) -> Tensor:
        """See `head.summed_loss`."""
        logits_NV, targets_N = logits_BTV.float().flatten(0, 1), targets_BT.flatten()
        counted_N = targets_N != IGNORED_TARGET
        loss_N, log_normaliser_N = _Losses.apply(  # type: ignore[no-untyped-call]
            logits_NV, targets_N - self.first, self._group
        )
        loss_N = loss_N.where(counted_N, 0.0)
        if tap is not None and tap.is_open:
            self._measure(tap, logits_BTV, targets_BT, loss_N, log_normaliser_N)
        loss: Tensor = loss_N.sum()
        if z_loss:
            loss = loss + z_loss * (log_normaliser_N.square() * counted_N).sum()
        return loss

    @staticmethod
    @torch.no_grad()
    def _measure(
        tap: Tap, logits_BTV: Tensor, targets_BT: Tensor, loss_N: Tensor, log_normaliser_N: Tensor
    ) -> None:
        counted_BT = targets_BT != IGNORED_TARGET
        counted_N = counted_BT.flatten()
        tap.keep_losses(loss_N.view(targets_BT.shape), counted_BT)
        tap.write_total("output_logit_max", logits_BTV.amax())
        largest = log_normaliser_N.masked_fill(~counted_N, -torch.inf).amax()
        mean = log_normaliser_N.masked_fill(~counted_N, 0.0).sum() / counted_N.sum()
        tap.write_total("logsumexp_max", largest)
        tap.write_total("logsumexp_mean", mean)


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
