"""The update gate: no NaN or infinity ever reaches a weight (DESIGN rule 4).

Enters: every gradient, and the loss. Leaves: a verdict that stays on the device, which every
optimizer obeys without the host looking at it. Never knows: the update rule.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict on one update: scalar tensors on the device."""

    gradient_norm: Tensor
    """Root of the summed squares over all parameters, before clipping; float32."""
    masked: Tensor
    """Bool: loss or gradient norm is not finite, and nothing may change."""
    divisor: Tensor | None
    """Float32: what every gradient is divided by so that the norm is at most the clip;
    None when clipping is off."""

    @contextmanager
    def guard(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Put `tensors` back to their bytes of before the body if the update is masked.

        Right for every in-place update, at the price of a copy of the tensors; an optimizer
        whose kernel can hold itself back (`found_inf`) does not need it.
        """
        before = [tensor.clone() for tensor in tensors]
        yield
        for tensor, kept in zip(tensors, before, strict=True):
            torch.where(self.masked, kept, tensor, out=tensor)


@torch.no_grad()
def judge(gradients: Sequence[Tensor], loss: Tensor, clip: float) -> Gate:
    """Measure the gradient and decide whether it may be applied, without waiting for the device.

    Args:
        gradients: of all parameters, on one device; unchanged.
        loss: scalar; a NaN here masks the update although all gradients may be finite.
        clip: largest norm; 0 does not clip. The divisor is the inverse of
            `torch.nn.utils.clip_grad_norm_`'s factor min(1, clip / (norm + 1e-6)).

    A norm whose square overflows float32 (beyond 1.8e19) counts as infinite.
    """
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(gradients))))
    masked = ~(torch.isfinite(norm) & torch.isfinite(loss))
    divisor = ((norm + 1e-6) / clip).clamp_min_(1.0) if clip else None
    return Gate(gradient_norm=norm, masked=masked, divisor=divisor)
