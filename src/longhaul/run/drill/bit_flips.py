"""One wrong bit: in a weight, in a gradient, in a file. What a bad chip, link or disk does."""

import os
from collections.abc import Callable

import torch
from torch import Tensor

from longhaul.logbook.folder import RunFolder
from longhaul.optim.sharding import own_part
from longhaul.store.catalogue import checkpoint_path
from longhaul.supervise.history import usable_checkpoints
from longhaul.train.step import TrainingStep

_AS_NUMBERS = {4: torch.int32, 2: torch.int16, 8: torch.int64, 1: torch.int8}


@torch.no_grad()
def flip_weight(step: TrainingStep, bit: int) -> None:
    """Turn a bit over in the middle of this rank's part of a layer's matrix.

    Of a layer: the row of an embedding that no text names would never show.
    """
    held = step.parallel.parameters if step.parallel is not None else None
    matrices = {
        name: own
        for name, parameter in (held or dict(step.model.named_parameters())).items()
        if parameter.ndim == 2 and (own := own_part(parameter)).numel()
    }
    flip(matrices[min(matrices, key=lambda name: not name.startswith("blocks."))], bit)


def flip_root(loss: Tensor, bit: int) -> None:
    """Turn a bit over in the gradient that enters the backward pass at `loss`.

    So all gradients of this rank are wrong by one factor, whatever wraps or compiles the model.
    """

    def flipped(gradient: Tensor) -> Tensor:
        wrong = gradient.clone()
        flip(wrong, bit)
        return wrong

    if loss.requires_grad:
        loss.register_hook(flipped)


@torch.no_grad()
def flip(tensor: Tensor, bit: int) -> None:
    """Turn a bit of the middle element over, counted from the lowest of a float32.

    Formats with fewer bits lack the lowest ones: bit 24 lies in the exponent of all but fp16.
    """
    if not tensor.is_contiguous():
        raise ValueError("a tensor with holes has no middle element")
    size = tensor.element_size()
    place = max(0, bit - 8 * (4 - size)) if size < 4 else bit
    bits = tensor.view(_AS_NUMBERS[size]).view(-1)
    mask = 1 << place
    if place == 8 * size - 1:
        mask -= 1 << 8 * size  # the sign bit, as signed numbers write it
    bits[bits.numel() // 2] ^= mask


def flip_newest_checkpoint(folder: RunFolder, before: Callable[[], object]) -> None:
    """Turn a bit in the middle of the newest checkpoint's largest file over, right after `before`.

    Only where there is another one to go back to: a run that has but one is lost with it, and that
    is known without a drill.
    """
    usable = usable_checkpoints(folder)
    if len(usable) < 2:
        return
    newest = checkpoint_path(folder.checkpoints, max(usable))
    largest = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    before()
    with largest.open("r+b") as file:
        middle = largest.stat().st_size // 2
        file.seek(middle)
        (byte,) = file.read(1)
        file.seek(middle)
        file.write(bytes([byte ^ 1]))
        file.flush()
        os.fsync(file.fileno())
