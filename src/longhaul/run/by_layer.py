"""A model that is larger than its device: each block's weights are read from the checkpoint right
before they are needed, and let go of right after.

Every pass reads all blocks, so that it pays to compute many sequences in one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch
from torch import Tensor, nn

from longhaul.core.units import Bytes
from longhaul.model.gpt import GPT
from longhaul.model.initialise import fill_buffers

Fill = Callable[[Mapping[str, Tensor]], None]
"""Fills tensors by their names in the model."""
_SHARE = 0.8
"""Of what is free; activations and logits need the rest."""
_BLOCKS = "blocks"


def is_too_large(model: GPT, device: torch.device) -> bool:
    """Whether the weights of a model, which may be on `meta`, leave no room on the device."""
    size: Bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    else:
        free = psutil.virtual_memory().available
    return size > _SHARE * free


def read_by_layer(model: GPT, device: torch.device, fill: Fill) -> None:
    """Make a model on `meta` compute on `device`: what is not in its blocks is loaded now, and each
    block whenever it computes. `fill` raises if the files are gone or have changed by then.
    """
    # Autocast would keep a copy of each weight that it has cast, if one could be trained.
    model.requires_grad_(False)
    for name, child in model.named_children():
        if name != _BLOCKS:
            child.to_empty(device=device)
    if model.padding_V is not None:
        model.padding_V = torch.empty_like(model.padding_V, device=device)
    fill_buffers(model)
    fill({n: p.data for n, p in model.named_parameters() if not n.startswith(f"{_BLOCKS}.")})
    for number, block in enumerate(model.blocks):
        _read_when_needed(block, f"{_BLOCKS}.{number}.", device, fill)


def _read_when_needed(block: nn.Module, prefix: str, device: torch.device, fill: Fill) -> None:
    def read(*_: Any) -> None:
        block.to_empty(device=device)
        fill({f"{prefix}{name}": p.data for name, p in block.named_parameters()})

    def let_go(*_: Any) -> None:
        block.to_empty(device="meta")

    block.register_forward_pre_hook(read)
    block.register_forward_hook(let_go, always_call=True)
