"""Filling a model's weights, and turning them into half precision.

GPT-2's rule ("Language Models are Unsupervised Multitask Learners", section 2.3, and its code):
normal with one standard deviation, divided by √(2·layers) for projections into the residual stream,
biases 0, scales 1. Each weight has a generator keyed by its name: the same numbers on any device or
shard, whatever weights other switches add.
"""

import torch
from torch import Tensor, nn

from longhaul.config.model import ModelSection
from longhaul.config.train import PrecisionSection
from longhaul.core.errors import UsageError
from longhaul.core.schedules import derive_key
from longhaul.model.embedding import LearnedPositions, RotaryPositions, fill_sinusoidal
from longhaul.model.gpt import GPT
from longhaul.model.layers import Norm
from longhaul.model.weights import Linear, Scalars, Table

_HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build(
    settings: ModelSection,
    vocab_size: int,
    seed: int,
    device: torch.device | str = "cpu",
    end_of_text: int | None = None,
) -> GPT:
    """A model on `device`, filled from the run's `seed`, float32; as `allocate`."""
    model = allocate(settings, vocab_size, device, end_of_text)
    initialise(model, settings, seed)
    return model


def allocate(
    settings: ModelSection,
    vocab_size: int,
    device: torch.device | str,
    end_of_text: int | None = None,
) -> GPT:
    """A model on `device` (which may be `meta`) that is not filled; a `UsageError` if documents are
    to be told apart, and the tokenizer has no end-of-text token.
    """
    if settings.document_mask and end_of_text is None:
        raise UsageError(
            "model.document_mask tells documents apart by the end-of-text token, and this "
            "tokenizer has none",
            "switch model.document_mask off, or take a tokenizer with an end-of-text token",
        )
    with torch.device(device):
        return GPT(settings, vocab_size, end_of_text)


@torch.no_grad()
def initialise(model: GPT, settings: ModelSection, seed: int) -> None:
    """Fill weights and constant buffers in place, wherever they are (not on `meta`)."""
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        fill_weight(parameter, name, owners[name.rpartition(".")[0]], settings, seed)
    fill_buffers(model)


@torch.no_grad()
def fill_weight(
    weight: Tensor, name: str, owner: nn.Module, settings: ModelSection, seed: int
) -> None:
    """Fill in place the whole weight that `owner` has under this name, or one of its shape."""
    match owner:
        case Scalars():
            weight.copy_(torch.tensor(owner.start))
        case Linear(zero=True) | Table(zero=True):
            weight.zero_()
        case LearnedPositions() if settings.position_init == "sinusoidal":
            fill_sinusoidal(weight, settings.init_std)
        case _ if weight.ndim < 2:
            weight.fill_(1.0 if name.endswith("weight") else 0.0)
        case _:
            std = settings.init_std
            if isinstance(owner, Linear) and owner.writes_residual:
                std /= (2 * settings.layers) ** 0.5
            # Drawn on the host: generators of different devices give different numbers.
            generator = torch.Generator("cpu").manual_seed(derive_key(seed, "initialise", name))
            drawn = weight if weight.is_cpu else torch.empty(weight.shape)
            weight.copy_(drawn.normal_(0.0, std, generator=generator))


@torch.no_grad()
def fill_buffers(model: GPT, first_token: int = 0) -> None:
    """Fill constant buffers in place; its part of the vocabulary begins at `first_token`."""
    for module in model.modules():
        if isinstance(module, RotaryPositions):
            module.fill()
    if model.padding_V is not None:
        model.padding_V.zero_()
        model.padding_V[max(0, model.vocab_size - first_token) :] = float("-inf")


def to_number_format(model: GPT, precision: PrecisionSection) -> None:
    """Turn the filled, float32 weights of `model` into the recipe's format, in place. Softmax and
    loss are summed in float32 whatever it is; `islands` keep the residual stream, the norms and
    learned mixtures in it, as YaLM-100B did against divergence (its article: 2 % of the time).
    """
    if precision.half_weights is None:
        return
    dtype, islands = _HALF_DTYPES[precision.half_weights], precision.islands
    for module in model.modules():
        if islands and isinstance(module, Norm):
            module.widens = True
        elif islands and isinstance(module, Scalars):
            pass
        else:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)
        if islands and isinstance(module, Linear):
            module.narrows = True
    if model.padding_V is not None:
        model.padding_V = model.padding_V.to(dtype)
    model.widens = islands
