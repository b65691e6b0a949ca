"""What happens to logits: the loss.

Shape suffixes: B batch, T time, V vocabulary (padded), N targets (B·T), R some of these.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longhaul.model.tap import Gauge, Tap

IGNORED_TARGET = -1
"""A target that is padding: it adds nothing to the loss."""

# Of logits widened at once by a thread: three tensors of that size stay in a core's second cache.
_WIDENED_BYTES = 2**19

OUTPUT_GAUGES = (
    Gauge("output_logit_max", "logit", "max", "largest output logit, after a softcap", "model"),
    Gauge("logsumexp_max", "nat", "max", "largest log of the softmax's normaliser", "model"),
    Gauge("logsumexp_mean", "nat", "mean", "mean of it over targets", "model"),
)
"""PaLM's z-loss holds the normaliser near 0; logits that drift away from it cost precision."""


class OfTargets(NamedTuple):
    """What gauges read of the outputs."""

    losses_N: Tensor
    """Without z-loss; 0 where there is no target."""
    log_normaliser_N: Tensor
    """Of the softmax."""
    largest: Tensor
    """Of all logits."""


Further = tuple[float, Tensor]
"""Weight and targets of tokens after the next one."""


def further_targets(
    targets_BT: Tensor, weights: tuple[float, ...], end_of_text: int | None
) -> tuple[Further, ...]:
    """The second token ahead of each position, the third and so on, for `model.ahead_stages`; none
    beyond the end of a document or of the sequence.
    """
    found: list[Further] = []
    ends_BT = targets_BT == IGNORED_TARGET
    if end_of_text is not None:
        ends_BT = ends_BT | (targets_BT == end_of_text)
    after_BT = targets_BT
    for weight in weights:
        after_BT = functional.pad(after_BT[:, 1:], (0, 1), value=IGNORED_TARGET)
        after_BT = after_BT.masked_fill(ends_BT, IGNORED_TARGET)
        found.append((weight, after_BT))
    return tuple(found)


class SummedLoss(nn.Module):
    """The loss, as a part of the model that may be exchanged."""

    has_all_columns = True
    """Of the logits, so that a chunk of rows has its gradient at once (`chunked_loss.py`)."""

    def forward(
        self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0, tap: Tap | None = None
    ) -> Tensor:
        """Sum of token losses in nats, over targets other than `IGNORED_TARGET`.

        `logits_BTV` has padding of the vocabulary at -inf. `z_loss`: weight of the softmax's log²
        normaliser, added per target (PaLM, arXiv 2204.02311, section 5). `tap`: while it is open,
        the outputs' gauges and each sequence's loss, without z-loss, are written to it.
        """
        logits_NV, targets_N = logits_BTV.flatten(0, 1), targets_BT.flatten()
        if z_loss:  # so that both parts of the gradient are added before they are rounded
            logits_NV = logits_NV.float()
        losses_N = _losses(logits_NV, targets_N)
        if tap is not None and tap.is_open:
            measure(tap, targets_BT, _of_targets(logits_NV, targets_N, losses_N))
        loss = losses_N.sum()
        if z_loss:
            log_normaliser_N = torch.logsumexp(logits_NV, dim=-1)
            counted_N = targets_N != IGNORED_TARGET
            loss = loss + z_loss * (log_normaliser_N.square() * counted_N).sum()
        return loss


@torch.no_grad()
def measure(tap: Tap, targets_BT: Tensor, found: OfTargets) -> None:
    """Write the outputs' gauges and each sequence's loss to an open tap."""
    counted_BT = targets_BT != IGNORED_TARGET
    tap.keep_losses(found.losses_N.view(targets_BT.shape), counted_BT)
    tap.write("output_logit_max", found.largest)
    counted_N, normaliser_N = counted_BT.flatten(), found.log_normaliser_N
    tap.write("logsumexp_max", normaliser_N.masked_fill(~counted_N, -torch.inf).amax())
    mean = normaliser_N.masked_fill(~counted_N, 0.0).sum() / counted_N.sum()
    tap.write("logsumexp_mean", mean)


def _losses(logits_NV: Tensor, targets_N: Tensor) -> Tensor:
    """Cross-entropy of each target, in float32: a sum in bfloat16 has two digits."""
    narrow_on_cpu = logits_NV.is_cpu and logits_NV.dtype != torch.float32
    if narrow_on_cpu and not torch.compiler.is_compiling() and len(logits_NV) > _rows(logits_NV):
        losses_N: Tensor = _LossesByRows.apply(logits_NV, targets_N)  # type: ignore[no-untyped-call]
        return losses_N
    return functional.cross_entropy(
        logits_NV.float(), targets_N, ignore_index=IGNORED_TARGET, reduction="none"
    )


def _rows(logits_NV: Tensor) -> int:
    """Rows that are widened at once."""
    return max(1, _WIDENED_BYTES * torch.get_num_threads() // (4 * logits_NV.size(1)))


class _LossesByRows(torch.autograd.Function):
    """Widens a few rows of half-precision logits at a time, and again for the gradient, with the
    same bits as all at once, which takes a CPU a tenth of a step at a vocabulary of 4,096.
    """

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, targets_N: Tensor) -> Tensor:
        ctx.save_for_backward(logits_NV, targets_N)
        rows = _rows(logits_NV)
        parts = zip(logits_NV.split(rows), targets_N.split(rows), strict=True)
        return torch.cat([
            functional.cross_entropy(
                logits_RV.float(), targets_R, ignore_index=IGNORED_TARGET, reduction="none"
            )
            for logits_RV, targets_R in parts
        ])  # fmt: skip

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_N: Tensor) -> tuple[Tensor, None]:
        logits_NV, targets_N = ctx.saved_tensors
        rows, aten = _rows(logits_NV), torch.ops.aten
        back_NV = torch.empty_like(logits_NV)
        counted = torch.zeros(())  # torch wants it, and reads it only for a mean
        for logits_RV, targets_R, gradient_R, back_RV in zip(
            *(whole.split(rows) for whole in (logits_NV, targets_N, gradient_N, back_NV)),
            strict=True,
        ):
            # The operations behind cross_entropy, so that the bits are its own.
            shares_RV = torch.log_softmax(logits_RV.float(), dim=1)
            towards_RV = aten.nll_loss_backward(
                gradient_R, shares_RV, targets_R, None, 0, IGNORED_TARGET, counted
            )
            back_RV.copy_(aten._log_softmax_backward_data(towards_RV, shares_RV, 1, torch.float32))
        return back_NV, None


@torch.no_grad()
def _of_targets(logits_NV: Tensor, targets_N: Tensor, losses_N: Tensor) -> OfTargets:
    # A target's loss is the log normaliser minus its logit, so that another pass over all logits,
    # and the copy that it would make of them, can be spared.
    target_N = logits_NV.gather(1, targets_N.clamp(min=0).unsqueeze(1)).squeeze(1)
    return OfTargets(losses_N, losses_N + target_N.float(), logits_NV.amax())
