"""Passes whose gradients lie in memory that the next pass writes again, as CUDA graphs have it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longhaul.config.load import load_recipe
from longhaul.model.initialise import build
from longhaul.train.passes import Passes


class Recorded(torch.autograd.Function):
    """The weight itself; its gradient is handed out in the same memory each time."""

    memory: Tensor

    @staticmethod
    def forward(context: Any, weight: Tensor) -> Tensor:
        return weight.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return Recorded.memory.copy_(gradient).detach()


@pytest.mark.parametrize("keeps", [True, False])
def test_sums_over_micro_batches_are_right_though_memory_is_written_again(keeps: bool) -> None:
    weight = nn.Parameter(torch.ones(3))
    Recorded.memory = torch.zeros(3)
    recipe = load_recipe("drill", ["model.width=16", "model.layers=1"]).recipe
    passes = Passes(build(recipe.model, 8, 0), torch.device("cpu"), False, is_shared=False)
    passes.records_graphs = keeps
    sums = []
    for first in (1.0, 10.0):  # two steps of two micro-batches
        for factor in (first, 2 * first):
            (factor * Recorded.apply(weight)).sum().backward()
            passes.keep_gradients([weight])
        assert weight.grad is not None
        sums.append(weight.grad.tolist())
        weight.grad = None
    right = [[3.0] * 3, [30.0] * 3]
    assert (sums == right) is keeps
