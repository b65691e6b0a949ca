"""The first micro-batch's gradient, seen stage by stage while others are already added to."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from longhaul.core.pieces import Pieces, pieces_of
from longhaul.optim.sharding import Sharding
from longhaul.parallel import data
from longhaul.parallel.data import FirstGradient


class OneRank(Sharding):
    """Sums over all ranks are this rank's."""

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


@pytest.fixture
def weights() -> dict[str, nn.Parameter]:
    names = ("tokens.weight", "blocks.0.up", "blocks.1.up", "blocks.1.norm")
    return {name: nn.Parameter(torch.zeros(2)) for name in names}


@pytest.fixture
def seen(weights: dict[str, nn.Parameter], monkeypatch: pytest.MonkeyPatch) -> FirstGradient:
    def both_ranks_have_the_same(gradients: Sequence[torch.Tensor], group: object) -> None:
        for gradient in gradients:
            gradient *= 2

    monkeypatch.setattr(data, "sum_together", both_ranks_have_the_same)
    pieces = {
        name: Pieces((2,), (tuple(pieces_of((2,), None, 1, 1)[0]),), holder=0) for name in weights
    }
    nobody = None
    sharding = OneRank(
        pieces,
        world=nobody,  # type: ignore[arg-type]
        holders=nobody,  # type: ignore[arg-type]
        replicas=nobody,  # type: ignore[arg-type]
        roles={},
        weights={},
        stages=1,
        loss_copies=1,
    )
    return FirstGradient(weights, [(nobody, ["blocks.1.norm"])], sharding)  # type: ignore[list-item]


def add(weight: nn.Parameter, value: float) -> None:
    weight.grad = torch.full((2,), value) + (0 if weight.grad is None else weight.grad)


def test_each_stage_counts_as_it_was_after_its_own_first_micro_batch(
    weights: dict[str, nn.Parameter], seen: FirstGradient
) -> None:
    # The stage with layer 1 goes back first; layer 0 is another stage of this rank.
    add(weights["blocks.1.up"], 1.0)
    add(weights["blocks.1.norm"], 2.0)
    seen.see(["blocks.0."])
    # Its second micro-batch comes before the other stage's first.
    add(weights["blocks.1.up"], 100.0)
    add(weights["blocks.1.norm"], 100.0)
    add(weights["blocks.0.up"], 3.0)
    add(weights["tokens.weight"], 4.0)
    seen.see(["blocks.1."])
    whole = 2 * (1 + (2 * 2) ** 2 + 9 + 16)  # the norm's gradient is summed over two ranks
    assert float(seen.norm()) == pytest.approx(math.sqrt(whole))


def test_gradients_stay_as_they_are(weights: dict[str, nn.Parameter], seen: FirstGradient) -> None:
    for weight in weights.values():
        add(weight, 1.0)
    seen.see()
    seen.norm()
    assert all(weight.grad is not None and weight.grad.eq(1).all() for weight in weights.values())
