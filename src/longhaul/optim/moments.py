"""The two moments of a gradient, which Adam and its kin keep for each weight.

Enters: the weights of one role. Leaves: their state, there before the first step, and the
settings that go with it. Never knows: what is computed from the moments.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from longhaul.config.optim import OptimSection
from longhaul.optim.groups import Group
from longhaul.optim.half import portions, state_like
from longhaul.optim.offload import lent
from longhaul.optim.rules import PortionsRule
from longhaul.optim.sharding import Sharding, cut_alike

_STATE = ("step", "exp_avg", "exp_avg_sq")


class MomentsRule(PortionsRule):
    """A rule that owns first and second moments.

    Args:
        group: the weights.
        steps_on: where the counters of updates live.
        copies: an update copies float32 weights too, so they are taken in portions.
        sharding: the weights are parts of whole ones.
        offloaded: the moments live on the host.
    """

    def __init__(
        self,
        group: Group,
        steps_on: torch.device,
        copies: bool = False,
        sharding: Sharding | None = None,
        offloaded: bool = False,
    ) -> None:
        super().__init__(group, sharding, offloaded)
        self.steps = [torch.zeros((), device=steps_on) for _ in group.parameters]
        self.exp_avgs = [state_like(parameter, offloaded) for parameter in group.parameters]
        self.exp_avg_sqs = [state_like(parameter, offloaded) for parameter in group.parameters]
        self.portions = portions(group.parameters, copies or offloaded)

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
