"""A rank that compares layouts for a preflight, on one of which a gradient counts twice."""

import sys
from pathlib import Path

from torch import Tensor, nn

from longhaul.cli.common import leaving_in_order
from longhaul.model.layers import MLP
from longhaul.run.preflight.layouts import compare
from longhaul.train.step import TrainingStep


def double_on_rank_1(step: TrainingStep) -> None:
    """The numbers of the forward pass stay as they are."""
    assert step.parallel is not None
    if step.parallel.world.rank == 1:
        for module in step.model.modules():
            if isinstance(module, MLP):
                module.register_forward_hook(_twice)


def _twice(module: nn.Module, given: object, out: Tensor) -> None:
    if out.requires_grad:
        out.register_hook(lambda gradient: 2.0 * gradient)


with leaving_in_order():
    compare(Path(sys.argv[1]), Path(sys.argv[2]), double_on_rank_1)
