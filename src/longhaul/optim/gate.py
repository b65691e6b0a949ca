"""The update gate: no NaN or infinity ever reaches a weight; and the dynamic loss scale that keeps
gradients of fp16 weights within fp16's range.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longhaul.config.optim import LossScaleSection
from longhaul.optim.sharding import Sharding


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict on one update: scalar tensors on the device."""

    gradient_norm: Tensor
    """Root of the summed squares over all parameters, unscaled, before clipping; float32."""
    masked: Tensor
    """Bool: loss or gradient norm is not finite, and nothing may change."""
    found_inf: Tensor
    """`masked` as float32, 1 or 0: what torch's fused kernels read."""
    divisor: Tensor | None
    """Float32: what every gradient is divided by, so that a loss scale is undone and the norm is at
    most the clip; None when there is neither."""
    loss: Tensor
    """Of the global batch."""

    @contextmanager
    def guard(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """Put `tensors` back to their bytes of before the body if the update is masked."""
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

    A norm whose square overflows float32 (beyond 1.8e19, scale included) counts as infinite.

    Args:
        gradients: of all parameters, on one device, of any floating dtype; unchanged.
        loss: scalar, unscaled; a NaN here masks the update although all gradients may be finite.
        clip: largest norm; 0 does not clip. The divisor is the inverse of
            `torch.nn.utils.clip_grad_norm_`'s factor min(1, clip / (norm + 1e-6)).
        scale: what the loss was multiplied by before the backward pass; a float32 scalar.
        sharding: the gradients are this rank's parts, and the loss its share; all ranks have the
            same verdict.
        names: with `sharding`, of the weights that the gradients belong to.
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


class LossScale:
    """Owner of the scale: training state, as a rollback must undo it too. Mixed Precision Training
    (arXiv 1710.03740, section 3.2), `torch.amp.GradScaler`'s arithmetic with a floor and a ceiling.
    """

    def __init__(self, settings: LossScaleSection, device: torch.device) -> None:
        self._initial = settings.initial
        self.scale = torch.full((), settings.initial, device=device)
        """float32; what the loss of the next step is multiplied by. Changed in place."""
        self._good_steps = torch.zeros((), dtype=torch.int64, device=device)
        self.apply_settings(settings)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """The loss to go backward from; float32, as fp16 would overflow."""
        return loss.float() * self.scale

    @torch.no_grad()
    def update(self, gate: Gate) -> Tensor:
        """Take the verdict of a step made at this scale: less after an overflow, more after long.
        True, on the device, if this step overflowed although the scale is at its floor already.
        """
        overflow, settings = gate.masked, self._settings
        at_floor = overflow & (self.scale <= settings.floor)
        good_steps = torch.where(overflow, 0, self._good_steps + 1)
        grows = good_steps >= settings.growth_interval
        factor = torch.where(grows, settings.growth_factor, 1.0)
        factor = torch.where(overflow, settings.backoff_factor, factor)
        self.scale.mul_(factor).clamp_(settings.floor, settings.ceiling)
        self._good_steps.copy_(torch.where(grows, 0, good_steps))
        return at_floor

    def reset(self) -> None:
        """Begin again at the scale of the first step."""
        self.scale.fill_(self._initial)
        self._good_steps.zero_()

    def apply_settings(self, settings: LossScaleSection) -> None:
        """Take changed settings and keep the scale."""
        self._settings = settings

    def live_settings(self) -> dict[str, float]:
        """Settings as the next update will read them."""
        return self.expected_settings(self._settings)

    def expected_settings(self, settings: LossScaleSection) -> dict[str, float]:
        """What `live_settings` must say under `settings`."""
        return {f"loss_scale.{name}": float(getattr(settings, name)) for name in _NUMBERS}

    def tensors(self) -> dict[str, Tensor]:
        """The scale, and the steps in a row that did not overflow."""
        return {"scale": self.scale, "good_steps": self._good_steps}

    def facts(self) -> Mapping[str, Any]:
        """None: the state is tensors."""
        return {}

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Nothing is left to do: the live tensors were filled."""


_NUMBERS = ("growth_interval", "growth_factor", "backoff_factor", "floor", "ceiling")
