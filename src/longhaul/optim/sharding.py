"""How the weights that an optimizer updates are parts of whole ones.

Most rules need no more than the part: they work element by element. What needs the whole asks
here: the gradient's norm, LAMB's norms, Muon's matrices.

Enters: process groups, and the pieces of each weight. Leaves: sums over ranks, on the device, that
are the same on all of them. Never knows: the update rule.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longhaul.core.pieces import Pieces
from longhaul.model.weights import Role


def own_part(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, unless it is a DTensor."""
    # Most are of these two types; looking an attribute up that is not there takes longer.
    if type(tensor) in (Tensor, nn.Parameter) or not hasattr(tensor, "to_local"):
        return tensor
    part: Tensor = tensor.to_local()
    return part


def cut_alike(weight: Tensor, own: Tensor) -> Tensor:
    """`own`, this process's part of what belongs to `weight`, as a DTensor if that is one."""
    if own_part(weight) is weight:
        return own
    sharded = cast(Any, weight.detach())
    return cast(Tensor, type(sharded)(own, sharded._spec, requires_grad=False))


@dataclass(frozen=True)
class Sharding:
    """The ranks that train one model, and what each of them holds.

    A rank's weights are parts of one stage of a pipeline's. Its holders (shard × tensor ranks)
    have one copy of that stage among them; its replicas (replicate ranks) hold the same parts.
    """

    pieces: Mapping[str, Pieces]
    """By name of a weight."""
    world: dist.ProcessGroup
    """All ranks."""
    holders: dist.ProcessGroup
    replicas: dist.ProcessGroup
    roles: Mapping[Role, int]
    """Elements of the whole model's weights by role; a stage may lack some roles."""
    weights: Mapping[Role, int]
    """How many weights those are."""
    stages: int
    """Of the pipeline, all ranks' together."""
    loss_copies: int
    """Ranks that compute each part of the loss."""

    @property
    def size(self) -> int:
        """Ranks among which work on one weight can be dealt out."""
        return dist.get_world_size(self.holders) * dist.get_world_size(self.replicas)

    def add_up(self, norms: Sequence[Tensor], names: Sequence[str], loss: Tensor) -> Tensor:
        """Squared norm of a tensor of which every rank has a part, and the sum of losses.

        One all-reduce over all ranks; each element counts once, however many ranks hold it.

        Args:
            norms: of this rank's parts, float32 scalars.
            names: of the weights that they belong to.
            loss: this rank's share; scalar.

        Returns:
            float32 [2]: square of the norm, loss.
        """
        square = self.own_share(norms, names).square()
        return self.sum(torch.stack((square, loss.float() / self.loss_copies)))

    def own_share(self, norms: Sequence[Tensor], names: Sequence[str]) -> Tensor:
        """A norm of which the squares of all ranks add up to that of the whole.

        Args:
            norms: of this rank's parts, float32 scalars.
            names: of the weights that they belong to.
        """
        shares = [1.0 / math.sqrt(self.pieces[name].copies) for name in names]
        norm: Tensor = torch.linalg.vector_norm(
            torch.stack(torch._foreach_mul(list(norms), shares))
        )
        return norm

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place."""
        dist.all_reduce(tensor, group=self.world)
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """Largest of all ranks, in place; NaN if there is one."""
        # What NCCL and gloo make of a NaN in a maximum is not written anywhere.
        broken = tensor.isnan()
        dist.all_reduce(
            tensor.nan_to_num_(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf),
            op=dist.ReduceOp.MAX,
            group=self.world,
        )
        return tensor.masked_fill_(self.sum(broken.float()) > 0, torch.nan)

    def whole_norms(self, kinds: Sequence[Sequence[Tensor]], names: Sequence[str]) -> Tensor:
        """Norms of whole weights from those of this rank's parts.

        Args:
            kinds: several kinds of norm, each a float32 scalar of every weight.
            names: of the weights W.

        Returns:
            [kinds, W].
        """
        shares = [1.0 / math.sqrt(_times_held(self.pieces[name])) for name in names]
        norms_KW = torch.stack([torch.stack(torch._foreach_mul(list(k), shares)) for k in kinds])
        squares_KW = norms_KW.square_()
        dist.all_reduce(squares_KW, group=self.holders)
        return squares_KW.sqrt_()


def _times_held(pieces: Pieces) -> int:
    """How many of the holders have each element."""
    elements = sum(piece.numel for held in pieces.by_holder for piece in held)
    return elements // math.prod(pieces.shape)
