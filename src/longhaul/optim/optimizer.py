"""What the trainer and checkpoints may ask of any optimizer.

Enters and leaves: gates, settings, tensors by name. Never knows: which update rule it is.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from longhaul.config.optim import OptimSection
from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group

LiveSettings = dict[str, float | str]
"""Dotted `role.setting` → value, such as `matrix.weight_decay`; clipping is `clip`, and the update
rule itself `optimizer.name`."""


class Optimizer(Protocol):
    """An update rule that owns its state.

    A step is: gradients computed, `gate = optimizer.judge(loss)`, `optimizer.step(gate)`,
    `optimizer.clear_gradients()`.
    """

    name: str
    """Value of `optim.name`."""
    groups: tuple[Group, ...]

    def judge(self, loss: Tensor, scale: Tensor | None = None) -> Gate:
        """Measure all gradients; see `gate.judge`."""
        ...

    def step(self, gate: Gate) -> None:
        """Update the weights in place, or leave everything byte-identical if the gate is masked."""
        ...

    def clear_gradients(self) -> None:
        """Forget the gradients of the step just made."""
        ...

    def set_learning_rate(self, lr: float) -> None:
        """The rate of the next step; each role takes its factor of it."""
        ...

    def apply_settings(self, settings: OptimSection) -> None:
        """Take changed settings (rate, betas, eps, decay, clip) and keep all state."""
        ...

    def reset(self) -> None:
        """Throw all state away: the next step is made as the very first one is."""
        ...

    def live_settings(self) -> LiveSettings:
        """Settings read back from where the update rule itself reads them (DESIGN rule 1)."""
        ...

    def expected_settings(self, settings: OptimSection, lr: float) -> LiveSettings:
        """What `live_settings` must say under `settings` at learning rate `lr`."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All state by name, `<weight>.<what>`, there before the first step.

        A checkpoint is restored by copying into these in place.
        """
        ...

    def facts(self) -> Mapping[str, Any]:
        """Which update rule the tensors belong to."""
        ...

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from restored state; the live tensors were filled in place."""
        ...
