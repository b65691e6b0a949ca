"""What happens to logits: the cap, and the loss.

Enters: logits, targets. Leaves: capped logits; the sum of token losses, float32; the outputs'
gauges in an open tap.
Never knows: weights, batches, or what the sum is divided by (DESIGN rule 6).

Shape suffixes: B batch, T time, V vocabulary (padded), N targets (B·T).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from longhaul.model.tap import Gauge, Tap

IGNORED_TARGET = -1
"""A target that is padding: it adds nothing to the loss."""


OUTPUT_GAUGES = (
    Gauge("output_logit_max", "logit", "max", "model", "largest output logit, after a softcap"),
    Gauge("logsumexp_max", "nat", "max", "model", "largest log of the softmax's normaliser"),
    Gauge("logsumexp_mean", "nat", "mean", "model", "mean of it over targets"),
)
"""PaLM's z-loss holds the normaliser near 0; logits that drift away from it cost precision."""


def softcapped(logits_BTV: Tensor, cap: float) -> Tensor:
    """Bounded: cap · tanh(logits / cap), in float32 (Gemma 2, arXiv 2408.00118, section 2)."""
    return cap * torch.tanh(logits_BTV.float() / cap)


def summed_loss(
    logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0, tap: Tap | None = None
) -> Tensor:
    """Sum of token losses in nats, over targets other than `IGNORED_TARGET`.

    Args:
        logits_BTV: padding of the vocabulary at -inf.
        targets_BT: the token that follows each.
        z_loss: weight of log² of the softmax's normaliser, added per target (PaLM, arXiv
            2204.02311, section 5).
        tap: the outputs' gauges and the loss of each sequence, without z-loss, are written to it
            while it is open.
    """
    # Float32 under autocast too: a sum over thousands of tokens in bfloat16 has two digits.
    logits_NV, targets_N = logits_BTV.float().flatten(0, 1), targets_BT.flatten()
    losses_N = functional.cross_entropy(
        logits_NV, targets_N, ignore_index=IGNORED_TARGET, reduction="none"
    )
    if tap is not None and tap.is_open:
        _measure(tap, logits_BTV, targets_BT, losses_N)
    loss = losses_N.sum()
    if z_loss:
        log_normaliser_N = torch.logsumexp(logits_NV, dim=-1)
        counted_N = targets_N != IGNORED_TARGET
        loss = loss + z_loss * (log_normaliser_N.square() * counted_N).sum()
    return loss


class SummedLoss(nn.Module):
    """`summed_loss` as a part of the model that may be exchanged."""

    def forward(
        self, logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0, tap: Tap | None = None
    ) -> Tensor:
        """See `summed_loss`."""
        return summed_loss(logits_BTV, targets_BT, z_loss, tap)


@torch.no_grad()
def _measure(tap: Tap, logits_BTV: Tensor, targets_BT: Tensor, losses_N: Tensor) -> None:
    counted_BT = targets_BT != IGNORED_TARGET
    losses_BT = losses_N.view(targets_BT.shape)
    tap.keep_losses(losses_BT, counted_BT)
    tap.write_total("output_logit_max", logits_BTV.amax())
    # A target's loss is the log normaliser minus its logit, so that another pass over all logits,
    # and the copy that it would make of them, can be spared.
    targets_BT1 = targets_BT.clamp(min=0).unsqueeze(-1)
    log_normaliser_BT = losses_BT + logits_BTV.gather(-1, targets_BT1).squeeze(-1).float()
    largest = log_normaliser_BT.masked_fill(~counted_BT, -torch.inf).amax()
    mean = log_normaliser_BT.masked_fill(~counted_BT, 0.0).sum() / counted_BT.sum()
    tap.write_total("logsumexp_max", largest)
    tap.write_total("logsumexp_mean", mean)
