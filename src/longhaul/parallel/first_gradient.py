"""The norm of the gradient of a step's first micro-batch, on ranks that have parts of it.

A gradient that only the end of a step sums over ranks is copied when it is there, and the copy is
summed. A pipeline's stages see their first micro-batch at different times, each before others are
added to its gradients.

Enters: parameters after a backward pass. Leaves: one norm, the same on all ranks.
Never knows: what it is for.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longhaul.optim.sharding import Sharding, own_part

Unsummed = Sequence[tuple[dist.ProcessGroup, Sequence[str]]]
"""Names of parameters whose gradients are still to be summed, by the group of ranks to sum over."""


class FirstGradient:
    """The gradient of one step's first micro-batch.

    Args:
        parameters: of this rank, by name.
        unsummed: of their gradients.
        sharding: who holds what.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], unsummed: Unsummed, sharding: Sharding
    ) -> None:
        self._parameters, self._unsummed, self._sharding = parameters, unsummed, sharding
        self._waiting = {name for _, names in unsummed for name in names}
        self._copies: dict[str, Tensor] = {}
        self._norms: dict[str, Tensor] = {}

    @torch.no_grad()
    def see(self, elsewhere: Sequence[str] = ()) -> None:
        """Look at the gradients that are there and were not seen yet.

        Args:
            elsewhere: beginnings of the names that belong to other stages of this rank.
        """
        given = {
            name: own_part(parameter.grad)
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
            and name not in self._norms
            and name not in self._copies
            and not name.startswith(tuple(elsewhere))
        }
        self._copies |= {name: g.clone() for name, g in given.items() if name in self._waiting}
        whole = {name: g for name, g in given.items() if name not in self._waiting}
        norms = torch._foreach_norm(list(whole.values()), 2, torch.float32) if whole else ()
        self._norms |= zip(whole, norms, strict=True)

    @torch.no_grad()
    def norm(self) -> Tensor:
        """Of the whole gradient, float32; all ranks call it together, after they have seen all."""
        for group, names in self._unsummed:
            copies = [self._copies[name] for name in names if name in self._copies]
            if copies:
                sum_together(copies, group)
        if self._copies:
            norms = torch._foreach_norm(list(self._copies.values()), 2, torch.float32)
            self._norms |= zip(self._copies, norms, strict=True)
        names, all_norms = zip(*self._norms.items(), strict=True)
        return self._sharding.sum(self._sharding.own_share(all_norms, names).square()).sqrt()


def sum_together(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """In place, in float32, by one collective."""
    flat = torch.cat([gradient.flatten().float() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    sums = flat.split([gradient.numel() for gradient in gradients])
    for gradient, total in zip(gradients, sums, strict=True):
        gradient.copy_(total.view_as(gradient))
