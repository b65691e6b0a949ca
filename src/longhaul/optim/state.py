"""Optimizer state: in the host's memory and lent to the device, or on the device; and weights in
half precision, updated in float32 (metaseq's memory-efficient fp16, OPT-175B).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from longhaul.model.device import Mark, queues
from longhaul.optim.sharding import own_part


def host_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """State on the host, page-locked if it is lent to a GPU."""
    return torch.zeros(tuple(shape), dtype=dtype, pin_memory=queues(device))


@contextmanager
def lent(
    tensors: Sequence[Tensor], device: torch.device, offloaded: bool
) -> Iterator[list[Tensor]]:
    """State to update in place: the tensors, or copies on the device that are copied back after,
    queued on its current stream, if they are offloaded to the host.

    ZeRO-Offload (arXiv 2101.06840) computes the update on the host, too; here the state travels,
    portion by portion: every rule stays what it is, Muon's products run where they are fast, and
    the gate's verdict stays on the device.
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


def wait_for_borrowed(device: torch.device) -> None:
    """Wait until what was lent is back, before the host reads or writes it."""
    if queues(device):
        Mark(device).record().synchronize()


_HALVES = (torch.bfloat16, torch.float16)
# Elements that are copied at once, which bounds the memory that an update borrows.
_MOST_AT_ONCE = 1 << 25


def state_like(weight: nn.Parameter, on_host: bool = False) -> Tensor:
    """Zeros for the state of a weight, shaped as this process's part; float32 for a half."""
    dtype = torch.float32 if weight.dtype in _HALVES else weight.dtype
    own = own_part(weight)
    if on_host:
        return host_zeros(own.shape, dtype, own.device)
    return torch.zeros_like(own, dtype=dtype, memory_format=torch.preserve_format).detach()


def lost_bits(weight: nn.Parameter) -> Tensor | None:
    """Zeros for what roundings of a half leave over; None for others."""
    return torch.zeros_like(own_part(weight)).detach() if weight.dtype in _HALVES else None


def gradients_of(weights: Sequence[nn.Parameter]) -> list[Tensor]:
    """Own parts of their gradients: halves as new float32 tensors, others the very tensors."""
    gradients = (own_part(weight.grad) for weight in weights if weight.grad is not None)
    return [g.float() if g.dtype in _HALVES else g for g in gradients]


Rounding = Literal["nearest", "stochastic", "compensated"]
"""Of half weights; see `optim.rounding`."""


@contextmanager
def in_float32(
    weights: Sequence[nn.Parameter],
    rounding: Rounding = "nearest",
    lost: Sequence[Tensor | None] = (),
    masked: Tensor | None = None,
) -> Iterator[list[Tensor]]:
    """Own parts of weights, to update in place: halves as float32 copies, which are rounded back
    after.

    One that did not change rounds back to the same bytes. Rounded to the nearest, as in metaseq's
    memory-efficient fp16, an update below half a unit in a weight's last place is lost.

    Args:
        weights: halves and others.
        rounding: `stochastic` draws from the device's default generator.
        lost: of each half, what earlier roundings left over, if that is `compensated`; changed.
        masked: then, a scalar; if true neither weight nor what is lost changes.
    """
    parts = [own_part(weight) for weight in weights]
    given = [part.float() if part.dtype in _HALVES else part for part in parts]
    changed = [(part, copy) for part, copy in zip(parts, given, strict=True) if copy is not part]
    kept = [one for one in lost if one is not None]
    for (_, copy), left in zip(changed, kept, strict=bool(kept)):
        copy.add_(left)
    yield given
    if rounding == "compensated" and masked is not None:
        for (part, copy), left in zip(changed, kept, strict=True):
            rounded = copy.to(part.dtype)
            # What a weight and its remainder add up to may round another way.
            left.copy_(torch.where(masked, left, (copy - rounded).to(left.dtype)))
            part.copy_(torch.where(masked, part, rounded))
    elif rounding == "stochastic":
        for part, copy in changed:
            part.copy_(_rounded_by_chance(copy))
    elif changed:
        halves, copies = zip(*changed, strict=True)
        torch._foreach_copy_(halves, copies)


def _rounded_by_chance(values: Tensor) -> Tensor:
    """Float32 values of which bfloat16 has every one, up or down with the chance that makes the
    mean right: random bits are added where bfloat16 has none, and what is left there is cut off.
    """
    noise = torch.randint(1 << 16, values.shape, dtype=torch.int32, device=values.device)
    cut = (values.view(torch.int32) + noise).bitwise_and_(-(1 << 16)).view(torch.float32)
    return torch.where(values.isfinite(), cut, values)


def portions(weights: Sequence[nn.Parameter], copies: bool = False) -> list[range]:
    """Positions of the weights to update together: all at once where nothing is copied."""
    if not copies and not any(weight.dtype in _HALVES for weight in weights):
        return [range(len(weights))]
    portions, first, elements = [], 0, 0
    for number, weight in enumerate(weights):
        own = own_part(weight).numel()
        if elements and elements + own > _MOST_AT_ONCE:
            portions.append(range(first, number))
            first, elements = number, 0
        elements += own
    return [*portions, range(first, len(weights))]
