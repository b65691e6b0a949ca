"""The two moments of a gradient, which Adam and its kin keep for each weight.

Enters: the weights of one role. Leaves: their state, there before the first step, and the
settings that go with it. Never knows: what is computed from the moments.
"""

import torch
from torch import Tensor

from longhaul.config.optim import OptimSection
from longhaul.optim.groups import Group
from longhaul.optim.half import portions, state_like
from longhaul.optim.rules import Rule
from longhaul.optim.sharding import Sharding, cut_alike

_STATE = ("step", "exp_avg", "exp_avg_sq")


class MomentsRule(Rule):
    """A rule that owns first and second moments.

    Args:
        group: the weights.
        steps_on: where the counters of updates live.
        copies: an update copies float32 weights too, so they are taken in portions.
        sharding: the weights are parts of whole ones.
    """

    def __init__(
        self,
        group: Group,
        steps_on: torch.device,
        copies: bool = False,
        sharding: Sharding | None = None,
    ) -> None:
        super().__init__(group, sharding)
        self.steps = [torch.zeros((), device=steps_on) for _ in group.parameters]
        self.exp_avgs = [state_like(parameter) for parameter in group.parameters]
        self.exp_avg_sqs = [state_like(parameter) for parameter in group.parameters]
        self.portions = portions(group.parameters, copies)

    def wanted(self, settings: OptimSection, lr: float) -> dict[str, float]:
        """Rate, betas, eps, decay."""
        return super().wanted(settings, lr) | {
            "beta1": settings.beta1,
            "beta2": settings.beta2,
            "eps": settings.eps,
        }

    def state_of(self, given: list[int]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """Counters, first and second moments of the weights at these positions."""
        steps, first, second = self.steps, self.exp_avgs, self.exp_avg_sqs
        return [steps[n] for n in given], [first[n] for n in given], [second[n] for n in given]

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counters by name, `<weight>.<what>`."""
        owned = zip(self.group.parameters, self.steps, self.exp_avgs, self.exp_avg_sqs, strict=True)
        return {
            f"{name}.{what}": tensor if what == "step" else cut_alike(weight, tensor)
            for name, (weight, *state) in zip(self.group.names, owned, strict=True)
            for what, tensor in zip(_STATE, state, strict=True)
        }
