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
    def fill(model: torch.nn.Module, seed: int, scale: float = 1.0) -> None:
        """Random gradients in place of a backward pass."""
        generator = torch.Generator().manual_seed(seed)
        for parameter in model.parameters():
            gradient = torch.randn(parameter.shape, generator=generator) * scale
            parameter.grad = gradient.to(parameter.dtype)

    return fill


@pytest.fixture
def update() -> Callable[..., object]:
    def update(optimizer, loss=2.0, scale=None):
        """One step as the trainer makes it."""
        gate = optimizer.judge(torch.tensor(loss), scale)
        optimizer.step(gate)
        optimizer.clear_gradients()
        return gate

    return update


@pytest.fixture
def state() -> Callable[..., dict[str, torch.Tensor]]:
    def state(model, optimizer):
        """Copies of everything that a step may change."""
        named = dict(model.named_parameters()) | optimizer.tensors()
        return {name: tensor.detach().clone() for name, tensor in named.items()}

    return state


@pytest.fixture
def put_back() -> Callable[..., None]:
    def put_back(model, optimizer, kept):
        for name, tensor in (dict(model.named_parameters()) | optimizer.tensors()).items():
            tensor.detach().copy_(kept[name])

    return put_back


@pytest.fixture
def differing() -> Callable[..., list[str]]:
    def differing(one, other):
        """Names of tensors that differ in a byte: NaN equals NaN, -0.0 differs from 0.0."""
        assert one.keys() == other.keys()
        return [name for name in one if _bytes(one[name]) != _bytes(other[name])]

    return differing


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
