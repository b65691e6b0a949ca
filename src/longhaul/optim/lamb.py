"""LAMB: Adam whose steps are as long as the weights they change.

Enters: gradients and a gate. Leaves: weights and moments updated in place.
Never knows: schedules, or which roles it is used for.
"""

import torch
from torch import Tensor

from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group
from longhaul.optim.half import gradients_of, in_float32
from longhaul.optim.moments import MomentsRule
from longhaul.optim.rules import divide, hush
from longhaul.optim.sharding import Sharding


class LambRule(MomentsRule):
    """LAMB (arXiv 1904.00962, algorithm 2), with φ the identity and each weight a layer.

    Adam's direction plus decay · weight is stretched to the weight's own norm. A weight or a
    direction of norm 0 is not stretched. Decay therefore sets a direction, not a length: a fresh
    weight with a zero gradient shrinks by exactly lr, whatever its decay.
    """

    def __init__(
        self, group: Group, sharding: Sharding | None = None, offloaded: bool = False
    ) -> None:
        device = group.parameters[0].device
        super().__init__(group, device, copies=True, sharding=sharding, offloaded=offloaded)

    def update_portion(self, given: list[int], gate: Gate) -> None:
        """See `PortionsRule.update_portion`."""
        parameters = [self.group.parameters[n] for n in given]
        with in_float32(parameters) as weights, self.state_of(given) as state:
            gradients = gradients_of(parameters)
            divide(gradients, gate.divisor)
            names = [self.group.names[n] for n in given]
            directions = self._directions(weights, gradients, state, names, gate)
            hush(directions, gate)
            torch._foreach_add_(weights, directions)

    def _directions(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        state: tuple[list[Tensor], list[Tensor], list[Tensor]],
        names: list[str],
        gate: Gate,
    ) -> list[Tensor]:
        """What the weights move by; anything at all if masked. The moments are updated."""
        steps, first, second = state
        beta1, beta2 = self.numbers["beta1"], self.numbers["beta2"]
        hush(gradients, gate)
        # By name: torch reads a tensor that stands in this place as a number, and waits for it.
        torch._foreach_add_(steps, other=1.0 - gate.found_inf)
        torch._foreach_mul_(first, torch.where(gate.masked, 1.0, beta1))
        torch._foreach_add_(first, gradients, alpha=1.0 - beta1)
        torch._foreach_mul_(second, torch.where(gate.masked, 1.0, beta2))
        torch._foreach_addcmul_(second, gradients, gradients, 1.0 - beta2)
        steps_W = torch.stack(steps)
        bias1, bias2 = (list((1.0 - beta**steps_W).unbind()) for beta in (beta1, beta2))
        directions = list(torch._foreach_div(first, bias1))
        roots = torch._foreach_div(second, bias2)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, self.numbers["eps"])
        torch._foreach_div_(directions, roots)
        if self.numbers["weight_decay"]:
            torch._foreach_add_(directions, weights, alpha=self.numbers["weight_decay"])
        weight_norms, norms = torch._foreach_norm(weights), torch._foreach_norm(directions)
        if self.sharding is None:
            weight_norms_W, norms_W = torch.stack(weight_norms), torch.stack(norms)
        else:
            weight_norms_W, norms_W = self.sharding.whole_norms((weight_norms, norms), names)
        both = (weight_norms_W > 0) & (norms_W > 0)
        lengths_W = torch.where(both, weight_norms_W / norms_W, 1.0) * -self.numbers["lr"]
        torch._foreach_mul_(directions, list(lengths_W.unbind()))
        return directions
