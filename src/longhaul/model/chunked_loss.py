"""Output product and loss together, a chunk of rows at a time, so that the logits of a micro-batch
never exist whole.

Shape suffixes: N targets (B·T), R rows of a chunk, D width, V vocabulary (padded).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from longhaul.core.output import print_error
from longhaul.model.compiling import lacks_for_triton
from longhaul.model.head import IGNORED_TARGET, Further, OfTargets

LossInPlace = Callable[
    [Tensor, Tensor, Tensor | None, float, float, Sequence[Further]], tuple[Tensor, Tensor, Tensor]
]
"""See `loss_kernel.loss_in_place`."""
KERNEL_DEVICES = ("cuda",)
_MOST_SAID = 200
"""Characters of what Triton says."""
_OLDEST = 8
"""Compute capability from which on the kernel is taken: Ampere's."""


def kernel_for(device: torch.device) -> LossInPlace | None:
    """The kernel that takes a chunk's loss on a device; None: PyTorch's operations do.

    It is looked for outside of what is compiled, imported only where it is taken, and tried out: a
    driver, a compiler or a folder that Triton lacks must not end a run that can do without.
    """
    if device.type not in KERNEL_DEVICES or any(lacks_for_triton()):
        return None
    if device.type == "cuda" and torch.version.hip is None:
        capability, _ = torch.cuda.get_device_capability(device)
        if capability < _OLDEST:
            return None
    if problem := _tried_out(device):
        print_error(
            f"WARNING: the loss goes without its kernel, as Triton fails here ({problem}): "
            "PyTorch's operations take its place"
        )
        return None
    from longhaul.model.loss_kernel import loss_in_place

    return loss_in_place


def _tried_out(device: torch.device) -> str:
    """What Triton says of the kernel on two small rows; empty if it computes them."""
    try:
        from longhaul.model.loss_kernel import loss_in_place

        targets_R = torch.zeros(2, dtype=torch.int64, device=device)
        loss_in_place(torch.zeros(2, 8, device=device), targets_R, None, 0.0, 0.0, ())
    except Exception as error:  # noqa: BLE001 (whatever Triton raises)
        return " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_SAID]
    return ""


@dataclass(frozen=True, slots=True)
class Head:
    """What makes logits, and what is added to their loss."""

    weight_VD: Tensor
    padding_V: Tensor | None
    """-inf on rows that are never predicted, 0 on others."""
    softcap: float
    z_loss: float
    kernel: LossInPlace | None = None
    """Makes the loss of a chunk's logits, and the gradient in their place."""


def chunked_loss(
    x_ND: Tensor,
    targets_N: Tensor,
    head: Head,
    rows: int,
    reads_gauges: bool = False,
    further: tuple[Further, ...] = (),
) -> tuple[Tensor, OfTargets]:
    """The summed loss of `SummedLoss`, z-loss included, and what gauges read of each target.

    The forward pass takes the gradients, while a chunk's logits are there; the backward pass only
    multiplies them (Liger Kernel, arXiv 2410.10989, section 3.2). Products are made in autocast's
    format, if it is on, and the weight's gradient is summed over chunks in float32, where one
    product would round it to that format. With float16 weights the gradients could overflow before
    a loss scale makes them small.

    Args:
        x_ND: what the head reads, in the format of its weight or wider.
        targets_N: int64; `IGNORED_TARGET` where there is none.
        head: its weight has all columns of the logits.
        rows: of a chunk. Each costs a pass over the gradient of the weight.
        reads_gauges: the largest logit is looked for, too; otherwise it is NaN.
        further: targets [B, T] whose weighted losses are in the gradients alone.
    """
    kind, weight = x_ND.device.type, head.weight_VD
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    loss, losses_N, log_normaliser_N, largest = _Chunked.apply(  # type: ignore[no-untyped-call]
        x_ND, weight, targets_N, head, rows, dtype, reads_gauges,
        tuple(share for share, _ in further), *(after_BT.flatten() for _, after_BT in further),
    )  # fmt: skip
    return loss, OfTargets(losses_N, log_normaliser_N, largest)


class _Chunked(torch.autograd.Function):
    """Differentiable: the first output alone, by x and the weight."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        head: Head,
        rows: int,
        dtype: torch.dtype,
        reads_gauges: bool,
        shares: tuple[float, ...],
        *further_N: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        narrow_VD = weight_VD.to(dtype)
        padding_V = None if head.padding_V is None else head.padding_V.to(dtype)
        head = replace(head, weight_VD=narrow_VD, padding_V=padding_V)
        wide = torch.promote_types(dtype, torch.float32)
        to_weight_VD = torch.zeros_like(weight_VD, dtype=wide)
        # A product in half precision that is added to them, in memory that is taken once.
        added_VD = None if dtype == wide else torch.empty_like(narrow_VD)
        to_x, of_chunks = [], []
        each = (one_N.split(rows) for one_N in (x_ND, targets_N, *further_N))
        for x_RD, targets_R, *further_R in zip(*each, strict=True):
            narrow_RD = x_RD.to(dtype)
            further = list(zip(shares, further_R, strict=True))
            found, gradient_RV = _of_chunk(narrow_RD, targets_R, head, wide, reads_gauges, further)
            of_chunks.append(found)
            to_x.append(torch.mm(gradient_RV, narrow_VD))
            if added_VD is None:
                to_weight_VD.addmm_(gradient_RV.t(), narrow_RD)
            else:
                to_weight_VD.add_(torch.mm(gradient_RV.t(), narrow_RD, out=added_VD))
            del gradient_RV  # before the next chunk's logits are made
        losses, normalisers, largest = zip(*of_chunks, strict=True)
        losses_N, log_normaliser_N = torch.cat(losses), torch.cat(normalisers)
        loss = losses_N.sum()
        if head.z_loss:
            counted_N = targets_N != IGNORED_TARGET
            loss = loss + head.z_loss * (log_normaliser_N.square() * counted_N).sum()
        most = torch.stack(largest).amax()
        ctx.x_dtype, ctx.weight_dtype = x_ND.dtype, weight_VD.dtype
        ctx.save_for_backward(torch.cat(to_x), to_weight_VD)
        ctx.mark_non_differentiable(losses_N, log_normaliser_N, most)
        return loss, losses_N, log_normaliser_N, most

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        to_x_ND, to_weight_VD = ctx.saved_tensors
        # In place, as they are large; a second backward pass is refused by torch, which sees it.
        to_x_ND.mul_(gradient)
        to_weight_VD.mul_(gradient)
        others = [None] * (len(ctx.needs_input_grad) - 2)
        return (to_x_ND.to(ctx.x_dtype), to_weight_VD.to(ctx.weight_dtype), *others)


def _of_chunk(
    x_RD: Tensor,
    targets_R: Tensor,
    head: Head,
    wide: torch.dtype,
    reads_gauges: bool,
    further: Sequence[Further],
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Losses, log normalisers and the largest logit; and the gradient of the logits [R, V], before
    the cap, of the summed loss and of `further` ones.
    """
    unread = x_RD.new_full((), torch.nan, dtype=wide)
    if head.kernel is not None:
        logits_RV = functional.linear(x_RD, head.weight_VD)
        losses_R, normaliser_R, largest_R = head.kernel(
            logits_RV, targets_R, head.padding_V, head.softcap, head.z_loss, further
        )
        found = losses_R, normaliser_R, largest_R.amax() if reads_gauges else unread
        return found, logits_RV
    bent_RV = None
    if head.softcap:
        # `layers.softcapped`, with the tangent kept for its gradient.
        bent_RV = functional.linear(x_RD, head.weight_VD).to(wide).div_(head.softcap).tanh_()
        logits_RV = bent_RV * head.softcap
        if head.padding_V is not None:
            logits_RV += head.padding_V
    else:
        logits_RV = functional.linear(x_RD, head.weight_VD, head.padding_V)
    largest = logits_RV.amax().to(wide) if reads_gauges else unread
    targets_R1 = targets_R.clamp(min=0).unsqueeze(1)
    counted_R1 = (targets_R != IGNORED_TARGET).unsqueeze(1)
    target_R1 = logits_RV.gather(1, targets_R1).to(wide)
    shares_RV = torch.log_softmax(logits_RV, dim=1, dtype=wide)
    del logits_RV
    losses_R1 = -shares_RV.gather(1, targets_R1)
    log_normaliser_R1 = losses_R1 + target_R1
    factor_R1 = counted_R1.to(wide)
    if head.z_loss:
        factor_R1 = factor_R1 * (1.0 + 2.0 * head.z_loss * log_normaliser_R1)
    asked = [(targets_R1, counted_R1.to(wide))]
    for weight, after_R in further:
        counts_R1 = (after_R != IGNORED_TARGET).unsqueeze(1).to(wide) * weight
        asked.append((after_R.clamp(min=0).unsqueeze(1), counts_R1))
        factor_R1 = factor_R1 + counts_R1
    gradient_RV = shares_RV.exp_().mul_(factor_R1)
    for wanted_R1, counts_R1 in asked:
        gradient_RV.scatter_add_(1, wanted_R1, -counts_R1)
    if bent_RV is not None:
        gradient_RV.mul_(bent_RV.square_().neg_().add_(1.0))
    losses_R = losses_R1.squeeze(1).where(counted_R1.squeeze(1), 0.0)
    return (losses_R, log_normaliser_R1.squeeze(1), largest), gradient_RV.to(x_RD.dtype)
