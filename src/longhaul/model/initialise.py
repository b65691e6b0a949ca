"""Filling a model's weights.

GPT-2's rule: normal with one standard deviation, output projections into the residual stream
divided by √(2·layers), biases 0, norms' scales 1 ("Language Models are Unsupervised Multitask
Learners", section 2.3, and its code).

Enters: an allocated model and a seed. Leaves: the same model, filled.
Never knows: torch's global generator: every weight has a generator of its own, keyed by its
name, so that a switch that adds weights leaves the start of all others as it was, and any
device or shard begins with the same numbers.
"""

import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.core.keys import derive_key
from longhaul.model.gpt import GPT
from longhaul.model.positions import RotaryPositions
from longhaul.model.weights import Linear


def build(
    settings: ModelSection, vocab_size: int, seed: int, device: torch.device | str = "cpu"
) -> GPT:
    """A model on `device`, filled from `seed`, float32."""
    with torch.device(device):
        model = GPT(settings, vocab_size)
    initialise(model, settings, seed)
    return model


@torch.no_grad()
def initialise(model: GPT, settings: ModelSection, seed: int) -> None:
    """Fill weights and constant buffers in place, wherever they are (not on `meta`)."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner = owners[name.rpartition(".")[0]]
        if parameter.ndim < 2:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            continue
        residual = isinstance(owner, Linear) and owner.writes_residual
        std = settings.init_std / (2 * settings.layers) ** 0.5 if residual else settings.init_std
        _fill_normal(parameter, std, derive_key(seed, "initialise", name))
    _fill_buffers(model)


def _fill_normal(parameter: nn.Parameter, std: float, key: int) -> None:
    generator = torch.Generator("cpu").manual_seed(key)
    if parameter.device.type == "cpu":
        parameter.normal_(0.0, std, generator=generator)
        return
    # Drawn on the host: generators of different devices give different numbers.
    drawn: Tensor = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
    parameter.copy_(drawn)


def _fill_buffers(model: GPT) -> None:
    for module in model.modules():
        if isinstance(module, RotaryPositions):
            module.fill()
    if model.padding_V is not None:
        model.padding_V.zero_()
        model.padding_V[model.vocab_size :] = float("-inf")
