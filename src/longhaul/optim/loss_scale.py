"""Dynamic loss scaling: gradients of fp16 weights kept within fp16's range.

Enters: losses before the backward pass, and the gate of each step. Leaves: the scale in force, on
the device; the host never waits for it. Never knows: the update rule; the gate undoes the scale.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longhaul.config.optim import LossScaleSection
from longhaul.optim.gate import Gate


class LossScale:
    """Owner of the scale: training state, as a rollback must undo it too.

    Mixed Precision Training (arXiv 1710.03740, section 3.2), `torch.amp.GradScaler`'s arithmetic
    with a floor and a ceiling. A step is:

        loss_scale.scale_loss(micro_loss).backward()
        gate = optimizer.judge(loss, loss_scale.scale)
        optimizer.step(gate)
        at_floor = loss_scale.update(gate)

    Args:
        settings: `optim.loss_scale`.
        device: of the gradients.
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

        Returns:
            bool on the device: this step overflowed although the scale is at its floor already,
            so that nothing is left to back off to.
        """
        overflow, numbers = gate.masked, self._numbers
        at_floor = overflow & (self.scale <= numbers["floor"])
        good_steps = torch.where(overflow, 0, self._good_steps + 1)
        grows = good_steps >= numbers["growth_interval"]
        factor = torch.where(grows, numbers["growth_factor"], 1.0)
        factor = torch.where(overflow, numbers["backoff_factor"], factor)
        self.scale.mul_(factor).clamp_(numbers["floor"], numbers["ceiling"])
        self._good_steps.copy_(torch.where(grows, 0, good_steps))
        return at_floor

    def reset(self) -> None:
        """Begin again at the scale of the first step."""
        self.scale.fill_(self._initial)
        self._good_steps.zero_()

    def apply_settings(self, settings: LossScaleSection) -> None:
        """Take changed settings and keep the scale."""
        self._numbers = _numbers(settings)

    def live_settings(self) -> dict[str, float]:
        """Settings as the next update will read them."""
        return {f"loss_scale.{name}": value for name, value in self._numbers.items()}

    def expected_settings(self, settings: LossScaleSection) -> dict[str, float]:
        """What `live_settings` must say under `settings`."""
        return {f"loss_scale.{name}": value for name, value in _numbers(settings).items()}

    def tensors(self) -> dict[str, Tensor]:
        """The scale, and the steps in a row that did not overflow."""
        return {"scale": self.scale, "good_steps": self._good_steps}

    def facts(self) -> Mapping[str, Any]:
        """None: the state is tensors."""
        return {}

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Nothing is left to do: the live tensors were filled."""


def _numbers(settings: LossScaleSection) -> dict[str, float]:
    return {
        "growth_interval": float(settings.growth_interval),
        "growth_factor": settings.growth_factor,
        "backoff_factor": settings.backoff_factor,
        "floor": settings.floor,
        "ceiling": settings.ceiling,
    }
