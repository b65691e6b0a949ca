"""The update gate: no NaN or infinity ever reaches a weight (DESIGN rule 4).

Enters: every gradient, and the loss. Leaves: a verdict that stays on the device, which every
optimizer obeys without the host looking at it. Never knows: the update rule.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from longhaul.optim.sharding import Sharding


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict on one update: scalar tensors on the device."""

    gradient_norm: Tensor
    """Root of the summed squares over all parameters, of the loss's own gradient (unscaled),
    before clipping; float32."""
    masked: Tensor
    """Bool: loss or gradient norm is not finite, and nothing may change."""
    found_inf: Tensor
    """`masked` as float32, 1 or 0: what torch's fused kernels read."""
    divisor: Tensor | None
    """Float32: what every gradient is divided by, so that a loss scale is undone and the norm is
    at most the clip; None when there is neither."""
    loss: Tensor
    """Of the global batch."""

    @contextmanager
    def guard(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Put `tensors` back to their bytes of before the body if the update is masked.

        Right for every in-place update, at the price of a copy of the tensors; an optimizer
        whose kernel can hold itself back (`found_inf`) does not need it.
        """
        before = [tensor.clone() for tensor in tensors]
        yield
        for tensor, kept in zip(tensors, before, strict=True):
            # Some counters live on the host whatever the device is.
            torch.where(self.masked.to(tensor.device), kept, tensor, out=tensor)


@torch.no_grad()
def judge(
    gradients: Sequence[Tensor],
    loss: Tensor,
    clip: float,
    scale: Tensor | None = None,
    sharding: Sharding | None = None,
    names: Sequence[str] = (),
) -> Gate:
    """Measure the gradient and decide whether it may be applied, without waiting for the device.

    Args:
        gradients: of all parameters, on one device, of any floating dtype; unchanged.
        loss: scalar, unscaled; a NaN here masks the update although all gradients may be finite.
        clip: largest norm; 0 does not clip. The divisor is the inverse of
            `torch.nn.utils.clip_grad_norm_`'s factor min(1, clip / (norm + 1e-6)).
        scale: what the loss was multiplied by before the backward pass; a float32 scalar.
        sharding: the gradients are this rank's parts, and the loss its share. The verdict is
            the same on all ranks.
        names: with `sharding`, of the weights that the gradients belong to.

    A norm whose square overflows float32 (beyond 1.8e19, scale included) counts as infinite.
    """
    # Summed in float32 whatever the gradients are: the norm of fp16 numbers overflows fp16.
    norms = torch._foreach_norm(list(gradients), 2, torch.float32)
    if sharding is None:
        norm = torch.linalg.vector_norm(torch.stack(norms))
    else:
        square, loss = sharding.add_up(norms, names, loss)
        norm = square.sqrt()
    masked = ~(torch.isfinite(norm) & torch.isfinite(loss))
    if scale is not None:
        norm = norm / scale
    divisor = ((norm + 1e-6) / clip).clamp_min_(1.0) if clip else None
    if scale is not None:
        divisor = scale.clone() if divisor is None else divisor * scale
    return Gate(
        gradient_norm=norm, masked=masked, found_inf=masked.float(), divisor=divisor, loss=loss
    )
