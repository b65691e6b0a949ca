"""The loss of a chunk of logits in one kernel, which `chunked_loss.py` takes on GPUs that Triton
knows. Only what trains there imports this file: Triton is no dependency.

Shape suffixes: R rows of a chunk, V vocabulary (padded), K targets of a row.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from longhaul.model.head import IGNORED_TARGET, Further

_MOST_COLUMNS = 4096
"""That a program holds at once: 16 to a thread."""
_WARPS = 8


def loss_in_place(
    logits_RV: Tensor,
    targets_R: Tensor,
    padding_V: Tensor | None,
    softcap: float,
    z_loss: float,
    further: Sequence[Further] = (),
) -> tuple[Tensor, Tensor, Tensor]:
    """Replace logits, before the cap and the padding, by the gradient of the summed loss, z-loss
    and `further` targets [R] included. Sums are float32, whatever the format of the logits.

    They are read twice and written once, the second time as a rule from the GPU's cache: a row of
    50,304 in bfloat16 has 100 kB. PyTorch's operations, one by one, pass over them some 20 times.

    Returns:
        float32 [R] each: the loss without z-loss, 0 where there is no target; the log normaliser;
        the largest logit, after the cap.
    """
    rows, columns = logits_RV.shape
    asked = [(1.0, targets_R), *further]
    targets_KR = torch.stack([wanted_R for _, wanted_R in asked])
    counts_KR = torch.stack([(wanted_R != IGNORED_TARGET) * weight for weight, wanted_R in asked])
    found_3R = torch.empty(3, rows, dtype=torch.float32, device=logits_RV.device)
    _replace_by_gradient[(rows,)](
        logits_RV, padding_V, targets_KR, counts_KR, found_3R, rows, softcap, z_loss,
        V=columns, K=len(asked), IS_CAPPED=softcap > 0, IS_PADDED=padding_V is not None,
        BLOCK=min(_MOST_COLUMNS, triton.next_power_of_2(columns)), num_warps=_WARPS,
    )  # fmt: skip
    losses_R, log_normaliser_R, largest_R = found_3R.unbind()
    return losses_R, log_normaliser_R, largest_R


@triton.jit
def _bent(logit, padding, softcap, IS_CAPPED: tl.constexpr):
    """A logit as the softmax takes it, and the slope of the cap there."""
    slope = 1.0
    if IS_CAPPED:
        # tanh and its slope, of an exponential that cannot overflow, so that no digits are lost.
        small = tl.exp(-2.0 * tl.abs(logit) / softcap)
        bent = softcap * (1.0 - small) / (1.0 + small)
        slope = 4.0 * small / ((1.0 + small) * (1.0 + small))
        logit = tl.where(logit < 0, -bent, bent)
    return logit + padding, slope


@triton.jit
def _loaded(
    logits, paddings, column, softcap,
    V: tl.constexpr, IS_CAPPED: tl.constexpr, IS_PADDED: tl.constexpr,
):  # fmt: skip
    """The same of these columns; beyond the last one is padding."""
    logit = tl.load(logits + column, mask=column < V, other=0.0).to(tl.float32)
    padding = tl.where(column < V, 0.0, -float("inf"))
    if IS_PADDED:
        padding += tl.load(paddings + column, mask=column < V, other=0.0).to(tl.float32)
    return _bent(logit, padding, softcap, IS_CAPPED)


@triton.jit
def _replace_by_gradient(
    logits, paddings, targets, counts, found,
    rows, softcap, z_loss,
    V: tl.constexpr, K: tl.constexpr, IS_CAPPED: tl.constexpr, IS_PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of `loss_in_place`. Names in plural point at the first row's."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * V
    targets += row
    counts += row
    # Ahead of the first sum, in which all threads wait for each other: later ones overwrite it.
    target = tl.maximum(tl.load(targets), 0)
    at_target, _ = _loaded(logits, paddings, target, softcap, V, IS_CAPPED, IS_PADDED)
    # Finite, so that a block of nothing but padding adds exp(-inf), not exp(inf - inf).
    largest = -3.4e38
    total = 0.0
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        logit, slope = _loaded(logits, paddings, column, softcap, V, IS_CAPPED, IS_PADDED)
        larger = tl.maximum(largest, tl.max(logit, 0))
        total = total * tl.exp(largest - larger) + tl.sum(tl.exp(logit - larger), 0)
        largest = larger
    normaliser = largest + tl.log(total)
    count = tl.load(counts)
    factor = count * (1.0 + 2.0 * z_loss * normaliser)
    for k in tl.static_range(1, K):
        factor += tl.load(counts + k * rows)
    factor /= total
    # The larger numbers first: a float32 near 10,000 has three digits behind the point.
    loss = largest - at_target + tl.log(total)
    tl.store(found + row, tl.where(count > 0, loss, 0.0))
    tl.store(found + rows + row, normaliser)
    # A maximum passes NaN over; the sum does not.
    tl.store(found + 2 * rows + row, tl.where(total == total, largest, total))
    for first in range(0, V, BLOCK):
        column = first + tl.arange(0, BLOCK)
        logit, slope = _loaded(logits, paddings, column, softcap, V, IS_CAPPED, IS_PADDED)
        gradient = tl.exp(logit - largest) * factor
        for k in tl.static_range(K):
            is_target = column == tl.maximum(tl.load(targets + k * rows), 0)
            gradient -= tl.where(is_target, tl.load(counts + k * rows), 0.0)
        gradient = (gradient * slope).to(logits.dtype.element_ty)
        tl.store(logits + column, gradient, mask=column < V)
