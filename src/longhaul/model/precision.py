"""Weights in half precision, with or without float32 islands.

Enters: a filled model. Leaves: the same model with its weights in bfloat16 or float16.
Never knows: loss scaling or the optimizer, which keeps its state in float32.
"""

import torch

from longhaul.model.gpt import GPT
from longhaul.model.norms import LayerNorm, RMSNorm
from longhaul.model.weights import Linear, Scalars


def to_half(model: GPT, dtype: torch.dtype, islands: bool) -> None:
    """Turn `model`'s weights into `dtype`, in place.

    Args:
        model: filled, float32.
        dtype: bfloat16 or float16.
        islands: keep the residual stream, the norms and learned mixtures in float32, as
            YaLM-100B did against divergence (its article: about 2 % of the time). Softmax and
            loss are summed in float32 either way: the attention kernels and the head do so.
    """
    for module in model.modules():
        if islands and isinstance(module, LayerNorm | RMSNorm):
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
