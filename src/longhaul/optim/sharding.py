"""How the weights that an optimizer updates are parts of whole ones, and how whole matrices are put
together from them, each at one rank, for what cannot be computed on parts.

Shape suffixes: N matrices of the stack, M those dealt to this rank, R rows and C columns of a whole
one, r and c those of this rank's part.
"""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
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

    A rank's weights are parts of one stage of a pipeline's. Its holders (shard × tensor ranks) have
    one copy of that stage among them; its replicas (replicate ranks) hold the same parts. What
    needs the whole asks here: the gradient's norm, LAMB's norms, Muon's matrices.
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
    summed_late: frozenset[str] = frozenset()
    """Weights whose gradients are not yet whole when the backward pass has ended."""

    @property
    def size(self) -> int:
        """Ranks among which work on one weight can be dealt out."""
        return dist.get_world_size(self.holders) * dist.get_world_size(self.replicas)

    def pieces_of(self, tensors: Mapping[str, Tensor]) -> dict[str, Pieces]:
        """Pieces of tensors named after a weight, or `<weight>.<what>`, that are cut as it is: they
        have the shape of its own part, which a counter of updates has not.
        """
        found = {}
        for name, tensor in tensors.items():
            weight = name if name in self.pieces else name.rpartition(".")[0]
            held = self.pieces.get(weight)
            own = tuple(own_part(tensor).shape)
            if held is not None and own == held.local_shape(held.holder):
                found[name] = held
        return found

    def add_up(self, norms: Sequence[Tensor], names: Sequence[str], loss: Tensor) -> Tensor:
        """Squared norm of a tensor and the sum of losses, float32 [2], by one all-reduce over all
        ranks; each element counts once.

        Args:
            norms: of this rank's parts, float32 scalars.
            names: of the weights that they belong to.
            loss: this rank's share; scalar.
        """
        square = self.own_share(norms, names).square()
        return self.sum(torch.stack((square, loss.float() / self.loss_copies)))

    def own_share(self, norms: Sequence[Tensor], names: Sequence[str]) -> Tensor:
        """A norm of which the squares of all ranks add up to that of the whole; see `add_up`."""
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
        """Norms [kinds, W] of whole weights, from those of this rank's parts by kind."""
        shares = [1.0 / math.sqrt(_times_held(self.pieces[name])) for name in names]
        norms_KW = torch.stack([torch.stack(torch._foreach_mul(list(k), shares)) for k in kinds])
        squares_KW = norms_KW.square_()
        dist.all_reduce(squares_KW, group=self.holders)
        return squares_KW.sqrt_()


def _times_held(pieces: Pieces) -> int:
    """How many of the holders have each element."""
    elements = sum(math.prod(piece.size) for held in pieces.by_holder for piece in held)
    return elements // math.prod(pieces.shape)


Whole = Callable[[Tensor], Tensor]
"""[M, R, C] → [M, R, C], matrix by matrix."""
Travel = Generator[None, None, Tensor]
"""Yields while tensors travel between ranks, and returns what arrived."""
Task = Generator[None, None, None]


def overlap(tasks: Iterable[Task]) -> None:
    """Run tasks that yield while their tensors travel. While one computes, the next one's tensors
    travel to it and those of the one before travel back, and no others. All ranks come to the same
    collectives in the same order.
    """
    running: list[Task] = []
    for task in tasks:
        running = [one for one in (task, *running) if _goes_on(one)]
    while running:
        running = [one for one in running if _goes_on(one)]


def _goes_on(task: Task) -> bool:
    """Run it to its next yield; whether there is one."""
    return next(task, task) is None


class Dealing:
    """A stack of `count` matrices of one shape, cut alike, dealt out to the ranks that hold them:
    the `first` rank, counted over replicas and holders, gets the first one, others follow.
    """

    def __init__(self, sharding: Sharding, pieces: Pieces, count: int, first: int) -> None:
        self._sharding, self._pieces = sharding, pieces
        self._first = first
        self._holders = dist.get_world_size(sharding.holders)
        self._replicas = dist.get_world_size(sharding.replicas)
        self._shapes = [pieces.local_shape(holder) for holder in range(self._holders)]
        ranks = self._replicas * self._holders
        self._numbers = [
            [
                range((replica + self._replicas * holder - first) % ranks, count, ranks)
                for holder in range(self._holders)
            ]
            for replica in range(self._replicas)
        ]
        """By replica and holder, which matrices it is dealt."""
        self._count = count

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a whole matrix."""
        return self._pieces.shape

    @property
    def travels(self) -> bool:
        """Whether whole matrices are put together from parts of several ranks."""
        return self._holders > 1

    @property
    def own_numbers(self) -> range:
        """Which matrices this rank is dealt."""
        return self._of_replica()[self._pieces.holder]

    def owner(self, number: int) -> tuple[int, int]:
        """Replica and holder that a matrix is dealt to."""
        holder, replica = divmod(
            (number + self._first) % (self._replicas * self._holders), self._replicas
        )
        return replica, holder

    def part_elements(self, holder: int) -> int:
        """Of what a holder has of each matrix."""
        return math.prod(self._shapes[holder])

    def __call__(self, parts_Nrc: Tensor, function: Whole) -> Travel:
        """`function` of the whole matrices, cut again. All ranks run it together."""
        give, take = self._sizes()
        parts = torch.cat([parts_Nrc[_every(numbers)] for numbers in self._of_replica()])
        there = self._exchange(parts.flatten(), give, take)
        del parts, parts_Nrc  # what has arrived is all that is held
        return (yield from self.back(self._made((yield from there), function)))

    def back(self, made_MRC: Tensor) -> Travel:
        """Parts [N, r, c] of all matrices, here, from the whole ones [M, R, C] that each rank has
        made.
        """
        give, take = self._sizes()
        flat = torch.cat(self._cut(made_MRC))
        del made_MRC
        back = self._exchange(flat, take, give)
        del flat
        return (yield from self._shared((yield from back)))

    def _of_replica(self) -> list[range]:
        return self._numbers[dist.get_rank(self._sharding.replicas)]

    def _sizes(self) -> tuple[list[int], list[int]]:
        """Elements that travel to each holder to be made whole, and from each."""
        own = self.part_elements(self._pieces.holder)
        give = [own * len(numbers) for numbers in self._of_replica()]
        return give, [len(self.own_numbers) * math.prod(part) for part in self._shapes]

    def _made(self, flat: Tensor, function: Whole) -> Tensor:
        whole_MRC = self.joined(flat, len(self.own_numbers))
        del flat  # what travels is let go of before anything is computed
        return function(whole_MRC) if len(whole_MRC) else whole_MRC

    def joined(self, parts: Tensor, count: int) -> Tensor:
        """Whole matrices [count, R, C] of parts, which lie flat one after the other, by holder."""
        whole_MRC = parts.new_empty(count, *self._pieces.shape)
        flat = parts.split([count * math.prod(shape) for shape in self._shapes])
        for part, shape, held in zip(flat, self._shapes, self._pieces.by_holder, strict=True):
            part_Mrc = part.view(count, *shape)
            for piece in held:
                whole_MRC[:, *piece.there] = part_Mrc[:, *piece.here]
        return whole_MRC

    def _cut(self, whole_MRC: Tensor) -> list[Tensor]:
        """The flat parts again."""
        parts = []
        for shape, held in zip(self._shapes, self._pieces.by_holder, strict=True):
            part_Mrc = whole_MRC.new_empty(len(whole_MRC), *shape)
            for piece in held:
                part_Mrc[:, *piece.here] = whole_MRC[:, *piece.there]
            parts.append(part_Mrc.flatten())
        return parts

    def _shared(self, flat: Tensor) -> Travel:
        """Every replica's matrices [N, r, c], each in its place, from its own flat ones."""
        shape = self._count, *self._shapes[self._pieces.holder]
        most = max(sum(map(len, dealt)) for dealt in self._numbers)
        if self._replicas > 1:
            own = flat.new_zeros(most * math.prod(shape[1:]))
            own[: len(flat)] = flat
            flat = flat.new_empty(self._replicas * len(own))
            of_each = list(flat.view(self._replicas, len(own)))
            work = dist.all_gather(of_each, own, group=self._sharding.replicas, async_op=True)
            yield
            work.wait()
        back_Nrc = flat.new_empty(shape)
        of_replicas = flat.view(self._replicas, most, *shape[1:])
        for dealt, made_Mrc in zip(self._numbers, of_replicas, strict=True):
            lengths = [len(numbers) for numbers in dealt]
            made = made_Mrc[: sum(lengths)].split(lengths)
            for numbers, part_Mrc in zip(dealt, made, strict=True):
                back_Nrc[_every(numbers)] = part_Mrc
        return back_Nrc

    def _exchange(self, sent: Tensor, give: list[int], take: list[int]) -> Travel:
        if self._holders == 1:
            return sent
        received = sent.new_empty(sum(take))
        work = dist.all_to_all_single(
            received, sent, take, give, group=self._sharding.holders, async_op=True
        )
        yield
        # On a GPU its stream waits, not the host.
        work.wait()
        return received


def _every(numbers: range) -> slice:
    """These matrices of a stack, as a view: with a list of numbers, which is copied to the device,
    the host would wait at every use.
    """
    return slice(numbers.start, None, numbers.step)
