"""From settings to a live optimizer.

Enters: a model and the optimizer's settings. Leaves: an `Optimizer` with its state allocated.
Never knows: what is done with it.
"""

from collections.abc import Callable

from torch import nn

from longhaul.config.optim import OptimSection
from longhaul.optim.adamw import AdamW
from longhaul.optim.optimizer import Optimizer

OPTIMIZERS: dict[str, Callable[[nn.Module, OptimSection], Optimizer]] = {"adamw": AdamW}
"""Value of `optim.name` → how one is made."""


def build_optimizer(model: nn.Module, settings: OptimSection) -> Optimizer:
    """The optimizer that the settings ask for, over all trainable weights of `model`."""
    return OPTIMIZERS[settings.name](model, settings)
