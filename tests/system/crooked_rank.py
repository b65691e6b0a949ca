"""`longhaul …` where the gradients of rank 1 are a thousandth too large from step 6 on."""

import os

import torch

from longhaul.cli.main import main
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

FROM_STEP = 6
make, backward = Trainer._step, TrainingStep._backward
factor = 1.0


def made(trainer: Trainer) -> None:
    global factor
    factor = 1.001 if trainer.position.step + 1 >= FROM_STEP else 1.0
    make(trainer)


def scaled(step: TrainingStep, loss: torch.Tensor) -> None:
    backward(step, loss * factor)


if os.environ.get("RANK") == "1":
    Trainer._step = made  # type: ignore[method-assign]
    TrainingStep._backward = scaled  # type: ignore[method-assign]
main()
