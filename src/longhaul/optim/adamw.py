"""AdamW: the owner of its moments, around torch's function of that name.

Enters: gradients and a gate. Leaves: weights and moments updated in place.
Never knows: schedules, or which roles it is used for.
"""

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group
from longhaul.optim.half import gradients_of, in_float32
from longhaul.optim.moments import MomentsRule
from longhaul.optim.rules import FUSED_DEVICES, divide


class AdamRule(MomentsRule):
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2).

    Torch's function does the arithmetic, in float32 whatever the weights are.
    """

    def __init__(self, group: Group, offloaded: bool = False) -> None:
        device = group.parameters[0].device
        # Torch's fused kernel wants its counters beside the weights, its loop on the host.
        steps_on = device if device.type in FUSED_DEVICES else torch.device("cpu")
        super().__init__(group, steps_on, offloaded=offloaded)

    def update_portion(self, given: list[int], gate: Gate) -> None:
        """See `PortionsRule.update_portion`."""
        parameters = [self.group.parameters[n] for n in given]
        with in_float32(parameters) as weights, self.state_of(given) as state:
            gradients = gradients_of(parameters)
            if self.fused:
                # The kernel divides by one and returns early on the other; its step counters are
                # raised before and lowered again after it, exactly, in float32.
                self._call(weights, gradients, state, gate.divisor, gate.found_inf)
                return
            divide(gradients, gate.divisor)
            with gate.guard([*weights, *(tensor for tensors in state for tensor in tensors)]):
                self._call(weights, gradients, state, None, None)

    def _call(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        state: tuple[list[Tensor], list[Tensor], list[Tensor]],
        divisor: Tensor | None,
        found_inf: Tensor | None,
    ) -> None:
        steps, exp_avgs, exp_avg_sqs = state
        adamw(
            weights,
            gradients,
            exp_avgs,
            exp_avg_sqs,
            [],
            steps,
            foreach=False,
            fused=self.fused,
            grad_scale=divisor,
            found_inf=found_inf,
            amsgrad=False,
            maximize=False,
            beta1=self.numbers["beta1"],
            beta2=self.numbers["beta2"],
            lr=self.numbers["lr"],
            weight_decay=self.numbers["weight_decay"],
            eps=self.numbers["eps"],
        )
