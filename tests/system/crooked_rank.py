"""`longhaul …` where the gradients of rank 1 are a thousandth too large from step 6 on."""

import os
from typing import Any

import torch

from longhaul.cli.entry import main
from longhaul.core.faults import Point, register

FROM_STEP = 6
steps = [0]


def begun(trainer: Any, step: int) -> None:
    steps[0] = step


def enlarge(loss: torch.Tensor, **context: Any) -> None:
    if steps[0] >= FROM_STEP and loss.requires_grad:
        loss.register_hook(lambda gradient: gradient * 1.001)


if os.environ.get("RANK") == "1":
    register(Point.BEFORE_STEP, begun)
    register(Point.LOSS, enlarge)
main()
