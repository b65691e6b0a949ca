"""Update rules that work weight by weight: AdamW, LAMB and SGDW, around torch's functions; and the
optimizer that the settings ask for.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from longhaul.config.optim import OptimSection
from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group
from longhaul.optim.muon import MuonRule
from longhaul.optim.optimizer import (
    Optimizer,
    PortionsRule,
    Rule,
    divide,
    hush,
    shrink_by,
    shrinking_where_agreed,
)
from longhaul.optim.sharding import Sharding, cut_alike
from longhaul.optim.state import gradients_of, lent, portions, state_like

_STATE = ("step", "exp_avg", "exp_avg_sq")


class MomentsRule(PortionsRule):
    """A rule that owns first and second moments."""

    own_arithmetic = False
    """Not torch's function: counters lie beside the weights, and float32 weights are copied."""

    def __init__(self, group: Group, settings: OptimSection, sharding: Sharding | None) -> None:
        super().__init__(group, settings, sharding)
        # Torch's fused kernel wants its counters beside the weights, its loop on the host.
        beside = self.fused or self.own_arithmetic
        steps_on = self.device if beside else torch.device("cpu")
        self.steps = [torch.zeros((), device=steps_on) for _ in group.parameters]
        self.exp_avgs = [state_like(parameter, self.offloaded) for parameter in group.parameters]
        self.exp_avg_sqs = [state_like(parameter, self.offloaded) for parameter in group.parameters]
        self.portions = portions(group.parameters, self.own_arithmetic or self.offloaded)

    def wanted(self, settings: OptimSection, lr: float) -> dict[str, float]:
        """Rate, betas, eps, decay."""
        return super().wanted(settings, lr) | {
            "beta1": settings.beta1,
            "beta2": settings.beta2,
            "eps": settings.eps,
        }

    @contextmanager
    def state_of(
        self, given: list[int]
    ) -> Iterator[tuple[list[Tensor], list[Tensor], list[Tensor]]]:
        """Counters, first and second moments of the weights at these positions, to update."""
        moments = [state[n] for state in (self.exp_avgs, self.exp_avg_sqs) for n in given]
        with lent(moments, self.device, self.offloaded) as here:
            yield [self.steps[n] for n in given], here[: len(given)], here[len(given) :]

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counters by name, `<weight>.<what>`."""
        owned = zip(self.group.parameters, self.steps, self.exp_avgs, self.exp_avg_sqs, strict=True)
        return {
            f"{name}.{what}": tensor if what == "step" else cut_alike(weight, tensor)
            for name, (weight, *state) in zip(self.group.names, owned, strict=True)
            for what, tensor in zip(_STATE, state, strict=True)
        }


class AdamRule(MomentsRule):
    """Adam with decoupled weight decay (arXiv 1711.05101, algorithm 2), by torch, in float32."""

    def wanted(self, settings: OptimSection, lr: float) -> dict[str, float]:
        """Those of `MomentsRule`, and whether decay is cautious, as 1 or 0."""
        return super().wanted(settings, lr) | {"cautious_decay": float(settings.cautious_decay)}

    def update_portion(self, given: list[int], gate: Gate) -> None:
        """See `PortionsRule.update_portion`."""
        parameters = [self.group.parameters[n] for n in given]
        with (
            self.widened(parameters, gate) as weights,
            self.state_of(given) as (steps, first, second),
        ):
            gradients = gradients_of(parameters)
            decay = self.numbers["weight_decay"]
            if decay and self.numbers["cautious_decay"]:
                self._decay_cautiously(weights, gradients, first, gate)
                decay = 0.0
            call = partial(
                adamw, weights, gradients, first, second, [], steps,
                foreach=False, amsgrad=False, maximize=False,
                beta1=self.numbers["beta1"], beta2=self.numbers["beta2"],
                eps=self.numbers["eps"], lr=self.numbers["lr"],
                weight_decay=decay,
            )  # fmt: skip
            self.update_by_torch(call, gradients, [*weights, *steps, *first, *second], gate)

    def _decay_cautiously(
        self, weights: list[Tensor], gradients: list[Tensor], first: list[Tensor], gate: Gate
    ) -> None:
        """Before the step, which goes against the first moment that is to come."""
        beta1 = self.numbers["beta1"]
        shrinking = shrink_by(gate, self.numbers["lr"] * self.numbers["weight_decay"])
        for weight, gradient, moment in zip(weights, gradients, first, strict=True):
            divided = gradient if gate.divisor is None else gradient / gate.divisor
            step = moment.lerp(divided, 1.0 - beta1).neg_()
            weight.mul_(shrinking_where_agreed(weight, step, shrinking))


class LambRule(MomentsRule):
    """LAMB (arXiv 1904.00962, algorithm 2), with φ the identity and each weight a layer.

    Adam's direction plus decay · weight is stretched to the weight's own norm, unless either is 0:
    decay sets a direction, not a length. A fresh weight with a zero gradient shrinks by lr.
    """

    own_arithmetic = True

    def update_portion(self, given: list[int], gate: Gate) -> None:
        """See `PortionsRule.update_portion`."""
        parameters = [self.group.parameters[n] for n in given]
        with self.widened(parameters, gate) as weights, self.state_of(given) as state:
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


class SgdwRule(PortionsRule):
    """SGD with momentum and decoupled decay (arXiv 1711.05101, algorithm 1).

    Unlike the paper's, the rate multiplies the momentum when it is used, as in `torch.optim.SGD`,
    so that a lowered rate holds at once; and decay is lr · decay, as in every optimizer here.
    OPT-175B's SGD put the decay into the gradient; here it never enters the momentum.
    """

    def __init__(self, group: Group, settings: OptimSection, sharding: Sharding | None) -> None:
        super().__init__(group, settings, sharding)
        with_momentum = group.parameters if settings.sgdw.momentum else ()
        self._buffers = [state_like(weight, self.offloaded) for weight in with_momentum]
        self.portions = portions(group.parameters, self.offloaded)

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
        with (
            self.widened(parameters, gate) as weights,
            lent(own, self.device, self.offloaded) as buffers,
        ):
            gradients = gradients_of(parameters)
            if self.numbers["weight_decay"]:
                share = self.numbers["lr"] * self.numbers["weight_decay"]
                torch._foreach_mul_(weights, shrink_by(gate, share))
            # Buffers start as zeros, from which the rule gives what torch's first step gives.
            call = partial(
                sgd, weights, gradients, list(buffers) or [None] * len(weights),
                foreach=False, maximize=False, weight_decay=0.0, dampening=0.0,
                momentum=self.numbers["momentum"], nesterov=bool(self.numbers["nesterov"]),
                lr=self.numbers["lr"],
            )  # fmt: skip
            self.update_by_torch(call, gradients, [*weights, *buffers], gate)

    def tensors(self) -> dict[str, Tensor]:
        """Momentum by name, `<weight>.momentum`; empty without momentum."""
        named = zip(self.group.names, self.group.parameters, self._buffers, strict=False)
        return {f"{name}.momentum": cut_alike(weight, buffer) for name, weight, buffer in named}


def _muon(group: Group, settings: OptimSection, sharding: Sharding | None) -> Rule:
    rule = MuonRule if group.role == "matrix" else AdamRule
    return rule(group, settings, sharding)


OPTIMIZERS: dict[str, Callable[[Group, OptimSection, Sharding | None], Rule]] = {
    "adamw": AdamRule,
    "muon": _muon,
    "lamb": LambRule,
    "sgdw": SgdwRule,
}
"""Value of `optim.name` → the update rule of a role's weights."""


def build_optimizer(
    model: nn.Module, settings: OptimSection, sharding: Sharding | None = None
) -> Optimizer:
    """The optimizer that the settings ask for, over all trainable weights of `model`."""
    return Optimizer(model, settings, OPTIMIZERS[settings.name], sharding)
