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
        layers=2, heads=2, width=16, context=8, bias=True, positions="learned", norm="layernorm",
        tied_head=False,
    )  # fmt: skip
    return build(settings, 21, seed=0)


@pytest.fixture
def make_settings() -> Callable[..., OptimSection]:
    def make(**changes: object) -> OptimSection:
        common = {"lr": 1e-2, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.3, "clip": 0.5}
        return OptimSection.model_validate(common | changes)

    return make


@pytest.fixture
def fill_gradients() -> Callable[..., None]:
    def fill(model: torch.nn.Module, seed: int, scale: float = 1.0) -> None:
        """Random gradients in place of a backward pass, about a third of them exactly 0."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            gradient = torch.randn(parameter.shape, generator=generator) * scale
            gradient *= torch.rand(parameter.shape, generator=generator) > 1 / 3
            parameter.grad = gradient.to(parameter.dtype)

    return fill
