"""What ranks that should have the same bits have, in short: hashes of weights, and of gradients
that all have computed from the same data.

A hash is exact: the sum over all elements of their bits, read as whole numbers, times odd numbers,
modulo 2^64. One wrong element always changes it, as an odd factor loses no bit; several do but for
one case in about 2^64. It is computed where the tensor lies; eight bytes are copied.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from longhaul.core.pieces import Pieces
from longhaul.data.batches import Batch
from longhaul.optim.sharding import own_part
from longhaul.parallel.layout import Layout
from longhaul.train.step import TrainingStep

if TYPE_CHECKING:  # it imports FSDP, which takes a second, and one process imports this file too
    from longhaul.parallel.parallelize import Parallel

_ROW = 1 << 20
"""Elements hashed at once on a device; the products take 8 MB."""
_ROW_ON_CPU = 1 << 16
"""So many stay in a core's cache: 1.6 ms a million, instead of 4.3."""
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
"""2^64 over the golden ratio, as signed numbers write it: its multiples spread evenly."""
_AS_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LOW = (1 << 32) - 1


@torch.no_grad()
def hash_of(tensor: Tensor) -> Tensor:
    """int64 scalar on the tensor's device; of equal bits equal, of others another one."""
    bits = tensor.detach().contiguous().view(_AS_NUMBERS[tensor.element_size()]).view(-1)
    factors = _factors(tensor.device)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for row in bits.split(len(factors)):
        total = total * _ODD + (row * factors[: len(row)]).sum()
    return total


def weight_hashes(parallel: "Parallel", rank: int) -> dict[str, str]:
    """Hashes of this rank's weights: name of a group of ranks → hash of those they hold alike."""
    sums: dict[str, Tensor] = {}
    layout = parallel.world.layout
    for name, parameter in sorted(parallel.parameters.items()):
        group, size = _holders(parallel.sharding.pieces[name], layout, rank)
        if size > 1:
            before = sums.get(group, torch.zeros((), dtype=torch.int64, device=parameter.device))
            sums[group] = before * _ODD + hash_of(own_part(parameter))
    return {group: f"{int(total) % (1 << 64):016x}" for group, total in sums.items()}


def held_alike(parallel: "Parallel", rank: int) -> float:
    """Share of this rank's weights, by elements, of which another rank has the same."""
    layout, alike, total = parallel.world.layout, 0, 0
    for name, parameter in parallel.parameters.items():
        elements = own_part(parameter).numel()
        total += elements
        alike += elements * (_holders(parallel.sharding.pieces[name], layout, rank)[1] > 1)
    return alike / total if total else 0.0


def computed(
    step: TrainingStep, batch: Batch, window: int | None, exact: bool
) -> tuple[float, ...]:
    """What this rank computes from a micro-batch that all data ranks are given, without an update.

    The gradients are looked at as they are computed, before they are summed over ranks; the step is
    left as it was, to the bit. Where ranks compute the same bits (`exact`), a hash will do.

    Returns:
        The loss, and a hash of the gradients in two numbers; if not exact, all their norms.
    """
    parallel = step.parallel
    assert parallel is not None
    place = parallel.world.layout.model_place(parallel.world.rank)
    with step.aside(draws_as=(place,)), _gradients(parallel, exact) as found:
        loss = step.compute(batch, len(batch.tokens_BT), window=window)
    if not exact:
        return (float(loss), *torch.stack(found).tolist())
    total = torch.zeros((), dtype=torch.int64, device=step.device)
    for one in found:
        total = total * _ODD + one
    bits = int(total)
    return float(loss), float(bits >> 32), float(bits & _LOW)


@contextmanager
def _gradients(parallel: "Parallel", exact: bool) -> Iterator[list[Tensor]]:
    """Hash or norm of each parameter's gradient in the body; 0 where there is none."""
    parameters = parallel.accumulating()
    dtype = torch.int64 if exact else torch.float32
    found = [torch.zeros((), dtype=dtype, device=p.device) for p in parameters]

    def look(number: int, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        own = own_part(gradient)
        found[number] = hash_of(own) if exact else own.norm(dtype=torch.float32)

    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda p, number=number: look(number, p))
        for number, parameter in enumerate(parameters)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _holders(pieces: Pieces, layout: Layout, rank: int) -> tuple[str, int]:
    """Name and size of the group of ranks that hold the same part of a weight as `rank`."""
    at, column = divmod(pieces.holder, layout.tensor)
    held, mine, size = pieces.by_holder, pieces.mine, layout.replicate
    name = f"stage {layout.stage(rank)}"
    if all(held[other * layout.tensor + column] == mine for other in range(layout.shard)):
        size *= layout.shard
    else:
        name += f", shard {at}"
    if all(held[at * layout.tensor + other] == mine for other in range(layout.tensor)):
        size *= layout.tensor
    else:
        name += f", tensor {column}"
    return name, size


@lru_cache(maxsize=4)
def _factors(device: torch.device) -> Tensor:
    length = _ROW_ON_CPU if device.type == "cpu" else _ROW
    return torch.arange(1, length + 1, device=device) * _ODD | 1
