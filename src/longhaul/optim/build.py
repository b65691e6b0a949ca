"""From settings to a live optimizer.

Enters: a model and the optimizer's settings. Leaves: an `Optimizer` with its state allocated.
Never knows: what is done with it.
"""

from collections.abc import Callable

from torch import nn

from longhaul.config.optim import OptimSection
from longhaul.optim.adamw import AdamRule
from longhaul.optim.groups import Group
from longhaul.optim.lamb import LambRule
from longhaul.optim.muon import MuonRule
from longhaul.optim.optimizer import Optimizer
from longhaul.optim.rules import Rule, RuledOptimizer
from longhaul.optim.sgdw import SgdwRule
from longhaul.optim.sharding import Sharding

RuleFor = Callable[[Group, OptimSection, Sharding | None], Rule]


def _muon(group: Group, settings: OptimSection, sharding: Sharding | None) -> Rule:
    if group.role == "matrix":
        return MuonRule(group, sharding, settings.offload)
    return AdamRule(group, settings.offload)


OPTIMIZERS: dict[str, RuleFor] = {
    "adamw": lambda group, settings, sharding: AdamRule(group, settings.offload),
    "muon": _muon,
    "lamb": lambda group, settings, sharding: LambRule(group, sharding, settings.offload),
    "sgdw": lambda group, settings, sharding: SgdwRule(
        group, settings.sgdw.momentum, settings.offload
    ),
}
"""Value of `optim.name` → the update rule of a role's weights."""


def build_optimizer(
    model: nn.Module, settings: OptimSection, sharding: Sharding | None = None
) -> Optimizer:
    """The optimizer that the settings ask for, over all trainable weights of `model`.

    Args:
        model: whose weights are updated.
        settings: of the optimizer.
        sharding: its weights are parts of whole ones.
    """
    return RuledOptimizer(settings.name, model, settings, OPTIMIZERS[settings.name], sharding)
