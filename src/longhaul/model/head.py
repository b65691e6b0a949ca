"""What happens to logits: the cap, and the loss.

Enters: logits, targets. Leaves: capped logits; the sum of token losses, float32.
Never knows: weights, batches, or what the sum is divided by (DESIGN rule 6).

Shape suffixes: B batch, T time, V vocabulary (padded), N targets (B·T).
"""

import torch
from torch import Tensor
from torch.nn import functional

IGNORED_TARGET = -1
"""A target that is padding: it adds nothing to the loss."""


def softcapped(logits_BTV: Tensor, cap: float) -> Tensor:
    """Bounded: cap · tanh(logits / cap), in float32 (Gemma 2, arXiv 2408.00118, section 2)."""
    return cap * torch.tanh(logits_BTV.float() / cap)


def summed_loss(logits_BTV: Tensor, targets_BT: Tensor, z_loss: float = 0.0) -> Tensor:
    """Sum of token losses in nats, over targets other than `IGNORED_TARGET`.

    Args:
        logits_BTV: padding of the vocabulary at -inf.
        targets_BT: the token that follows each.
        z_loss: weight of log² of the softmax's normaliser, added per target (PaLM, arXiv
            2204.02311, section 5).
    """
    # Float32 under autocast too: a sum over thousands of tokens in bfloat16 has two digits.
    logits_NV, targets_N = logits_BTV.float().flatten(0, 1), targets_BT.flatten()
    loss = functional.cross_entropy(
        logits_NV, targets_N, ignore_index=IGNORED_TARGET, reduction="sum"
    )
    if z_loss:
        log_normaliser_N = torch.logsumexp(logits_NV, dim=-1)
        counted_N = targets_N != IGNORED_TARGET
        loss = loss + z_loss * (log_normaliser_N.square() * counted_N).sum()
    return loss
