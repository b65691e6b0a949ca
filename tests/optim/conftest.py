from collections.abc import Callable

import pytest
import torch

from longhaul.config.model import ModelSection
from longhaul.config.optim import OptimSection
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build


@pytest.fixture
def model() -> GPT:
    """A small model with a weight of every role."""
    settings = ModelSection(
        layers=2, heads=2, width=16, context=8, bias=True, positions="learned", norm="layernorm"
    )
    return build(settings, 21, seed=0)


@pytest.fixture
def settings() -> OptimSection:
    return OptimSection(lr=1e-2, beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3, clip=0.0)


@pytest.fixture
def fill_gradients() -> Callable[..., None]:
    def fill(model: GPT, seed: int, scale: float = 1.0) -> None:
        """Random gradients in place of a backward pass."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator) * scale

    return fill
