"""SGDW: the owner of its momentum, around torch's function for SGD.

Enters: gradients and a gate. Leaves: weights and momentum updated in place.
Never knows: schedules, or which roles it is used for.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from longhaul.config.optim import OptimSection
from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group
from longhaul.optim.half import gradients_of, in_float32, portions, state_like
from longhaul.optim.offload import lent
from longhaul.optim.rules import PortionsRule, divide, shrink_by
from longhaul.optim.sharding import cut_alike


class SgdwRule(PortionsRule):
    """SGD with momentum and decoupled decay (arXiv 1711.05101, algorithm 1).

    Two conventions differ from the paper's: the rate multiplies the momentum when it is used, as
    in `torch.optim.SGD`, so that a lowered rate holds at once; and decay is lr · decay, as in
    every optimizer here, where the paper's is the schedule's share times decay. OPT-175B's SGD
    put the decay into the gradient; here it never enters the momentum.

    Args:
        group: the weights.
        momentum: 0 allocates no buffer at all.
        offloaded: the buffers live on the host.
    """

    def __init__(self, group: Group, momentum: float, offloaded: bool = False) -> None:
        super().__init__(group, offloaded=offloaded)
        self._buffers = [state_like(weight, offloaded) for weight in group.parameters if momentum]
        self.portions = portions(group.parameters, offloaded)

    def wanted(self, settings: OptimSection, lr: float) -> dict[str, float]:
        """Rate, momentum, decay; nesterov as 1 or 0."""
        return super().wanted(settings, lr) | {
            "momentum": settings.sgdw.momentum,
            "nesterov": float(settings.sgdw.nesterov and settings.sgdw.momentum > 0),
        }

    def update_portion(self, given: list[int], gate: Gate) -> None:
        """See `PortionsRule.update_portion`."""
        parameters = [self.group.parameters[n] for n in given]
        own = [self._buffers[n] for n in given] if self._buffers else []
        with in_float32(parameters) as weights, lent(own, self.device, self.offloaded) as buffers:
            gradients = gradients_of(parameters)
            if self.numbers["weight_decay"]:
                share = self.numbers["lr"] * self.numbers["weight_decay"]
                torch._foreach_mul_(weights, shrink_by(gate, share))
            if self.fused:
                self._call(weights, gradients, buffers, gate.divisor, gate.found_inf)
                return
            divide(gradients, gate.divisor)
            with gate.guard([*weights, *buffers]):
                self._call(weights, gradients, buffers, None, None)

    def _call(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        buffers: Sequence[Tensor],
        divisor: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        # Buffers start as zeros, from which the rule gives what torch's first step gives.
        sgd(
            weights,
            gradients,
            list(buffers) or [None] * len(weights),
            foreach=False,
            fused=self.fused,
            grad_scale=divisor,
            found_inf=found_inf,
            weight_decay=0.0,
            momentum=self.numbers["momentum"],
            lr=self.numbers["lr"],
            dampening=0.0,
            nesterov=bool(self.numbers["nesterov"]),
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Momentum by name, `<weight>.momentum`; empty without momentum."""
        named = zip(self.group.names, self.group.parameters, self._buffers, strict=False)
        return {f"{name}.momentum": cut_alike(weight, buffer) for name, weight, buffer in named}
