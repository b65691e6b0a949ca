"""AdamW: the owner of its moments, around `torch.optim.AdamW`.

Enters: gradients and a gate. Leaves: weights and moments updated in place.
Never knows: schedules; the rate of each step is given to it.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longhaul.config.optim import OptimSection
from longhaul.core.errors import NeedsPerson
from longhaul.optim.gate import Gate, judge
from longhaul.optim.groups import make_groups, weight_decay
from longhaul.optim.optimizer import LiveSettings

# Devices whose fused kernel obeys `found_inf` and `grad_scale`: one pass over the memory clips,
# updates and masks, about four times as fast on a CPU as a loop over tensors after a clipping
# pass. On other devices that loop runs inside the gate's guard.
_FUSED_DEVICES = ("cpu", "cuda", "xpu")
_STATE = ("step", "exp_avg", "exp_avg_sq")


class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2)."""

    def __init__(self, model: nn.Module, settings: OptimSection) -> None:
        self.groups = make_groups(model)
        self._parameters = [p for group in self.groups for p in group.parameters]
        device = self._parameters[0].device
        self._fused = device.type in _FUSED_DEVICES
        self._torch = torch.optim.AdamW(
            [{"params": list(group.parameters), "role": group.role} for group in self.groups],
            lr=settings.lr,
            fused=self._fused,
            foreach=None if self._fused else False,
        )
        # Allocated now, as torch would at the first step, so that a checkpoint can be copied in
        # and memory is known before the first batch.
        for parameter in self._parameters:
            self._torch.state[parameter] = {
                "step": torch.zeros((), device=device if self._fused else "cpu"),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }
        self.apply_settings(settings)

    def judge(self, loss: Tensor) -> Gate:
        """Measure all gradients; see `gate.judge`."""
        return judge([p.grad for p in self._parameters if p.grad is not None], loss, self._clip)

    def step(self, gate: Gate) -> None:
        """One update, or nothing at all if the gate is masked."""
        if self._fused:
            # The kernel divides by one and returns early on the other; its step counters are
            # raised before and lowered again after it, exactly, in float32.
            self._torch.grad_scale = gate.divisor  # type: ignore[attr-defined]
            self._torch.found_inf = gate.masked.float()  # type: ignore[attr-defined]
            self._torch.step()
            return
        if gate.divisor is not None:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(gate.divisor)
        with torch.no_grad(), gate.guard([*self._parameters, *self.tensors().values()]):
            self._torch.step()

    def clear_gradients(self) -> None:
        """Forget the gradients; the next backward pass keeps its own tensors instead of adding."""
        self._torch.zero_grad(set_to_none=True)

    def set_learning_rate(self, lr: float) -> None:
        """The rate of the next step, for all groups."""
        for group in self._torch.param_groups:
            group["lr"] = lr

    def apply_settings(self, settings: OptimSection) -> None:
        """Take changed settings and keep all state."""
        self._clip = settings.clip
        for group in self._torch.param_groups:
            group["lr"] = settings.lr
            group["betas"] = (settings.beta1, settings.beta2)
            group["eps"] = settings.eps
            group["weight_decay"] = weight_decay(group["role"], settings)

    def live_settings(self) -> LiveSettings:
        """Settings as the next step will read them."""
        live: LiveSettings = {"clip": self._clip}
        for group in self._torch.param_groups:
            beta1, beta2 = group["betas"]
            values = {
                "lr": group["lr"],
                "beta1": beta1,
                "beta2": beta2,
                "eps": group["eps"],
                "weight_decay": group["weight_decay"],
            }
            live |= {f"{group['role']}.{name}": float(value) for name, value in values.items()}
        return live

    def expected_settings(self, settings: OptimSection, lr: float) -> LiveSettings:
        """What `live_settings` must say under `settings` at learning rate `lr`."""
        expected: LiveSettings = {"clip": settings.clip}
        for group in self.groups:
            expected |= {
                f"{group.role}.lr": lr,
                f"{group.role}.beta1": settings.beta1,
                f"{group.role}.beta2": settings.beta2,
                f"{group.role}.eps": settings.eps,
                f"{group.role}.weight_decay": weight_decay(group.role, settings),
            }
        return expected

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counters by name, `<weight>.<what>`."""
        return {
            f"{name}.{what}": self._torch.state[parameter][what]
            for group in self.groups
            for name, parameter in zip(group.names, group.parameters, strict=True)
            for what in _STATE
        }

    def facts(self) -> Mapping[str, Any]:
        """Which update rule the tensors belong to."""
        return {"name": "adamw"}

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from restored state; the live tensors were filled in place.

        Raises:
            NeedsPerson: the state is another update rule's.
        """
        if facts["name"] != "adamw":
            raise NeedsPerson(
                f"the checkpoint holds the state of optimizer {facts['name']}, not of adamw",
                "set optim.name back, or start another run with --new",
            )
