"""Filling a model's weights.

GPT-2's rule: normal with one standard deviation, output projections into the residual stream
divided by √(2·layers), biases 0, norms' scales 1 ("Language Models are Unsupervised Multitask
Learners", section 2.3, and its code). Modules that say so start at zero (modded-nanogpt), or at
numbers of their own.

Enters: an allocated model and a seed. Leaves: the same model, filled.
Never knows: torch's global generator: every weight has a generator of its own, keyed by its
name, so that a switch that adds weights leaves the start of all others as it was, and any
device or shard begins with the same numbers.
"""

import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.core.errors import UsageError
from longhaul.core.keys import derive_key
from longhaul.model.gpt import GPT
from longhaul.model.positions import LearnedPositions, RotaryPositions
from longhaul.model.weights import Linear, Scalars, Table


def build(
    settings: ModelSection,
    vocab_size: int,
    seed: int,
    device: torch.device | str = "cpu",
    end_of_text: int | None = None,
) -> GPT:
    """A model on `device`, filled from `seed`, float32.

    Args:
        settings: shape and switches.
        vocab_size: tokens of the tokenizer.
        seed: the run's.
        device: where it will compute.
        end_of_text: the token that ends a document, for `model.document_mask`.

    Raises:
        UsageError: documents are to be told apart, and the tokenizer has no end-of-text token.
    """
    if settings.document_mask and end_of_text is None:
        raise UsageError(
            "model.document_mask tells documents apart by the end-of-text token, and this "
            "tokenizer has none",
            "switch model.document_mask off, or take a tokenizer with an end-of-text token",
        )
    with torch.device(device):
        model = GPT(settings, vocab_size, end_of_text)
    initialise(model, settings, seed)
    return model


@torch.no_grad()
def initialise(model: GPT, settings: ModelSection, seed: int) -> None:
    """Fill weights and constant buffers in place, wherever they are (not on `meta`)."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner = owners[name.rpartition(".")[0]]
        match owner:
            case Scalars():
                parameter.copy_(torch.tensor(owner.start))
            case Linear(zero=True) | Table(zero=True):
                parameter.zero_()
            case LearnedPositions() if settings.position_init == "sinusoidal":
                owner.fill_sinusoidal(settings.init_std)
            case _ if parameter.ndim < 2:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)
            case _:
                std = settings.init_std
                if isinstance(owner, Linear) and owner.writes_residual:
                    std /= (2 * settings.layers) ** 0.5
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
