"""AdamW: the owner of its moments and live settings, around torch's function of that name.

Enters: gradients and a gate. Leaves: weights and moments updated in place.
Never knows: schedules; the rate of each step is given to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from longhaul.config.optim import OptimSection
from longhaul.core.errors import NeedsPerson
from longhaul.optim.gate import Gate, judge
from longhaul.optim.groups import Group, make_groups, weight_decay
from longhaul.optim.optimizer import LiveSettings

# Devices whose fused kernel obeys `found_inf` and `grad_scale`: one pass over the memory clips,
# updates and masks, about four times as fast on a CPU as a loop over tensors after a clipping
# pass. On other devices that loop runs inside the gate's guard.
_FUSED_DEVICES = ("cpu", "cuda", "xpu")
_STATE = ("step", "exp_avg", "exp_avg_sq")


@dataclass(slots=True)
class _Rule:
    """One group as the update rule reads it: the lists it is given, and its live numbers."""

    group: Group
    steps: list[Tensor]
    exp_avgs: list[Tensor]
    exp_avg_sqs: list[Tensor]
    lr: float = 0.0
    beta1: float = 0.0
    beta2: float = 0.0
    eps: float = 0.0
    weight_decay: float = 0.0


class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2).

    Torch's function does the arithmetic. Its `Optimizer` class is left out on purpose: it imports
    the compiler at its first use, more than a second of every start, and its wrappers cost half a
    millisecond a step.
    """

    def __init__(self, model: nn.Module, settings: OptimSection) -> None:
        self.groups = make_groups(model)
        self._parameters = [p for group in self.groups for p in group.parameters]
        device = self._parameters[0].device
        self._fused = device.type in _FUSED_DEVICES
        counters_on = device if self._fused else torch.device("cpu")
        # Allocated before the first step, so that a checkpoint can be copied in and memory is
        # known before the first batch.
        self._rules = [
            _Rule(
                group,
                steps=[torch.zeros((), device=counters_on) for _ in group.parameters],
                exp_avgs=[_zeros_like(parameter) for parameter in group.parameters],
                exp_avg_sqs=[_zeros_like(parameter) for parameter in group.parameters],
            )
            for group in self.groups
        ]
        self.apply_settings(settings)

    def judge(self, loss: Tensor) -> Gate:
        """Measure all gradients; see `gate.judge`."""
        return judge([p.grad for p in self._parameters if p.grad is not None], loss, self._clip)

    @torch.no_grad()
    def step(self, gate: Gate) -> None:
        """One update, or nothing at all if the gate is masked."""
        if self._fused:
            # The kernel divides by one and returns early on the other; its step counters are
            # raised before and lowered again after it, exactly, in float32.
            masked = gate.masked.float()
            for rule in self._rules:
                self._update(rule, gate.divisor, masked)
            return
        if gate.divisor is not None:
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(gate.divisor)
        with gate.guard([*self._parameters, *self.tensors().values()]):
            for rule in self._rules:
                self._update(rule, None, None)

    def _update(self, rule: _Rule, divisor: Tensor | None, masked: Tensor | None) -> None:
        given = [n for n, weight in enumerate(rule.group.parameters) if weight.grad is not None]
        adamw(
            [rule.group.parameters[n] for n in given],
            [gradient for p in rule.group.parameters if (gradient := p.grad) is not None],
            [rule.exp_avgs[n] for n in given],
            [rule.exp_avg_sqs[n] for n in given],
            [],
            [rule.steps[n] for n in given],
            foreach=False,
            fused=self._fused,
            grad_scale=divisor,
            found_inf=masked,
            amsgrad=False,
            beta1=rule.beta1,
            beta2=rule.beta2,
            lr=rule.lr,
            weight_decay=rule.weight_decay,
            eps=rule.eps,
            maximize=False,
        )

    def clear_gradients(self) -> None:
        """Forget the gradients; the next backward pass keeps its own tensors instead of adding."""
        for parameter in self._parameters:
            parameter.grad = None

    def set_learning_rate(self, lr: float) -> None:
        """The rate of the next step, for all groups."""
        for rule in self._rules:
            rule.lr = lr

    def apply_settings(self, settings: OptimSection) -> None:
        """Take changed settings and keep all state."""
        self._clip = settings.clip
        for rule in self._rules:
            rule.lr = settings.lr
            rule.beta1, rule.beta2 = settings.beta1, settings.beta2
            rule.eps = settings.eps
            rule.weight_decay = weight_decay(rule.group.role, settings)

    def live_settings(self) -> LiveSettings:
        """Settings as the next step will read them."""
        live: LiveSettings = {"clip": self._clip}
        for rule in self._rules:
            for name in ("lr", "beta1", "beta2", "eps", "weight_decay"):
                live[f"{rule.group.role}.{name}"] = float(getattr(rule, name))
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
            f"{name}.{what}": tensor
            for rule in self._rules
            for name, *state in zip(
                rule.group.names, rule.steps, rule.exp_avgs, rule.exp_avg_sqs, strict=True
            )
            for what, tensor in zip(_STATE, state, strict=True)
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


def _zeros_like(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter, memory_format=torch.preserve_format).detach()
