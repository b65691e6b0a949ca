"""Optimizer state that lives in the host's memory and is lent to the device for its update.

ZeRO-Offload (arXiv 2101.06840) computes the update on the host, too; here it is the state that
travels, portion by portion, because every rule then stays what it is: Muon's products run where
they are fast, the gate's verdict stays on the device, and nobody waits for either. FSDP2's
`CPUOffloadPolicy` moves weights and gradients as well, and would gather them over the host.

Enters: state on the host, a device. Leaves: copies there, and after use the same bytes back.
Never knows: the update rule.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from longhaul.model.device import Mark, queues


def host_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """State on the host, page-locked if it is lent to a GPU."""
    return torch.zeros(tuple(shape), dtype=dtype, pin_memory=queues(device))


@contextmanager
def lent(
    tensors: Sequence[Tensor], device: torch.device, offloaded: bool
) -> Iterator[list[Tensor]]:
    """State to update in place: the tensors themselves, or copies that are copied back after.

    The copies are queued on the device's current stream; a CPU is given copies too.

    Args:
        tensors: of a portion of the weights.
        device: on which they are updated.
        offloaded: they live on the host.
    """
    if not offloaded:
        yield list(tensors)
        return
    copies = [torch.empty_like(tensor, device=device) for tensor in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    yield copies
    for copy, tensor in zip(copies, tensors, strict=True):
        tensor.copy_(copy, non_blocking=True)


def wait_for_loans(device: torch.device) -> None:
    """Wait until what was lent is back, before the host reads or writes it."""
    if queues(device):
        Mark(device).record().synchronize()
