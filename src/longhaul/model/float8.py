"""Matrix products of the layers in float8, by torchao.

Inputs, weights and gradients are cast at each product, scaled by the largest number of the whole
tensor; products add up in float32, and weights stay as they are. Nothing is kept from one product
to the next, so that a run resumes with the same bits.
"""

import logging

import torch

from longhaul.core.errors import UsageError
from longhaul.model.gpt import GPT
from longhaul.model.weights import Linear

_EVEN = 16
"""Rows and columns of what tensor cores multiply come in as many."""
_FIRST_CAPABILITY = (8, 9)
"""Of an NVIDIA GPU that multiplies float8: Ada."""
_OURS = ("role", "parts", "zero", "writes_residual")


def to_float8(model: GPT, device: torch.device) -> int:
    """Let the matrices of `model` between activations multiply in float8 on `device`; how many.
    Elsewhere than on a GPU that can, the same is computed slowly. UsageError without torchao.
    """
    disabled = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)  # of kernels that nothing here needs
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
        from torchao.float8.float8_linear import Float8Linear
    except ImportError:
        raise UsageError(
            "precision.float8: torchao is not installed", "pip install 'longhaul[float8]'"
        ) from None
    finally:
        logging.disable(disabled)
    there = device.type == "cuda" and torch.version.hip is None
    can = there and torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY
    chosen = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Linear)
        and module.role == "matrix"
        and not any(size % _EVEN for size in module.weight.shape)
    }
    config = Float8LinearConfig(emulate=not can, pad_inner_dim=True)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name in chosen
    )
    kind = type("Float8Linear", (Float8Linear, Linear), {})  # filled, and told apart, like ours
    for name, linear in chosen.items():
        converted = model.get_submodule(name)
        converted.__class__ = kind
        vars(converted).update({own: getattr(linear, own) for own in _OURS})
    return len(chosen)
