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


def _muon(group: Group, settings: OptimSection) -> Rule:
    return MuonRule(group) if group.role == "matrix" else AdamRule(group)


OPTIMIZERS: dict[str, Callable[[Group, OptimSection], Rule]] = {
    "adamw": lambda group, settings: AdamRule(group),
    "muon": _muon,
    "lamb": lambda group, settings: LambRule(group),
    "sgdw": lambda group, settings: SgdwRule(group, settings.sgdw.momentum),
}
"""Value of `optim.name` → the update rule of a role's weights."""


def build_optimizer(model: nn.Module, settings: OptimSection) -> Optimizer:
    """The optimizer that the settings ask for, over all trainable weights of `model`."""
    return RuledOptimizer(settings.name, model, settings, OPTIMIZERS[settings.name])
