"""Matrices on their way to the ranks that they are dealt to, sent while the backward pass goes on.

What Muon makes orthogonal depends on the norm of all gradients, which is known when that pass ends;
so a matrix's gradient and its momentum travel, and the rank that has the whole of both mixes them.

Shape suffixes: as in `sharding`; 2 stands for gradient and momentum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longhaul.optim.sharding import Dealing, Sharding, own_part

_MESSAGE = 1 << 24
"""Elements of whole matrices that are sent together: fewer would be many short messages, more would
leave less to go on beside the backward pass."""


@dataclass(eq=False)
class Stacked:
    """Matrices of one stack, and which of them have set out in this step."""

    dealing: Dealing
    momentum_Nrc: Tensor
    matrices: list["_Matrix"] = field(default_factory=list)

    @property
    def begun(self) -> bool:
        """Whether any has; all ranks agree."""
        return any(matrix.ready for matrix in self.matrices)


@dataclass(eq=False)
class _Matrix:
    weight: nn.Parameter
    stacked: Stacked
    number: int
    ready: bool = False
    message: "_Message | None" = None
    """What it travels in."""


class _Message:
    """Parts of matrices, exchanged between the holders of one copy of the model."""

    def __init__(self, sharding: Sharding, matrices: Sequence[_Matrix]) -> None:
        holders = range(dist.get_world_size(sharding.holders))
        replica, own = dist.get_rank(sharding.replicas), dist.get_rank(sharding.holders)
        owners = [matrix.stacked.dealing.owner(matrix.number) for matrix in matrices]
        to = [
            [m for m, owner in zip(matrices, owners, strict=True) if owner == (replica, holder)]
            for holder in holders
        ]
        for matrix in matrices:
            matrix.message = self
        self._matrices = to[own]
        parts = [part for dealt in to for matrix in dealt for part in _parts(matrix)]
        give = [sum(_elements(matrix, own) for matrix in dealt) for dealt in to]
        self._take = [sum(_elements(matrix, h) for matrix in to[own]) for h in holders]
        self._work: dist.Work | None = None
        if parts:  # otherwise all of it is dealt to other replicas, which have the same parts
            sent = torch.cat(parts)
            self._received = sent.new_empty(sum(self._take))
            self._work = dist.all_to_all_single(
                self._received, sent, self._take, give, group=sharding.holders, async_op=True
            )

    def arrived(self, matrix: _Matrix) -> Tensor:
        """Whole gradient and momentum [2, R, C] of a matrix dealt to this rank."""
        # On a GPU its stream waits, not the host. What arrives was allocated on the stream that
        # sums gradients, which waits for the next step's before it gives that memory to others.
        if self._work is not None:
            self._work.wait()
            self._work = None
        at, chunks = self._matrices.index(matrix), []
        for holder, flat in enumerate(self._received.split(self._take)):
            sizes = [_elements(one, holder) for one in self._matrices]
            chunks.append(flat.split(sizes)[at])
        return matrix.stacked.dealing.joined(torch.cat(chunks), 2)


class EarlyExchange:
    """Sends what its stacks need as soon as a gradient is summed, once it is `open`.

    All ranks' backward passes sum gradients in one order, as FSDP2 relies on too.
    """

    def __init__(self, sharding: Sharding) -> None:
        self.open = False
        """The backward pass that runs is the last one of an update."""
        self._sharding = sharding
        self._stacks: list[Stacked] = []
        self._by_weight: dict[nn.Parameter, _Matrix] = {}
        self._waiting: list[_Matrix] = []

    def add(
        self, weights: Sequence[nn.Parameter], momentum_Nrc: Tensor, dealing: Dealing
    ) -> Stacked:
        """Send for this stack from now on."""
        stacked = Stacked(dealing, momentum_Nrc)
        for number, weight in enumerate(weights):
            matrix = _Matrix(weight, stacked, number)
            stacked.matrices.append(matrix)
            self._by_weight[weight] = matrix
            weight.register_post_accumulate_grad_hook(self._summed)
        self._stacks.append(stacked)
        return stacked

    def finish(self) -> None:
        """Send what is left of stacks of which some matrices have set out already."""
        for stacked in self._stacks:
            if stacked.begun:
                self._waiting += [m for m in stacked.matrices if not m.ready]
        self._send()
        self.open = False

    def arrived(self, stacked: Stacked) -> tuple[Tensor, Tensor]:
        """Whole gradients and momenta [M, R, C] of the matrices of a stack dealt to this rank."""
        numbers = stacked.dealing.own_numbers
        pairs = []
        for number in numbers:
            matrix = stacked.matrices[number]
            assert matrix.message is not None
            pairs.append(matrix.message.arrived(matrix))
        if not pairs:
            none = stacked.momentum_Nrc.new_empty(0, *stacked.dealing.shape)
            return none, none
        pair_M2RC = torch.stack(pairs)
        return pair_M2RC[:, 0], pair_M2RC[:, 1]

    def discard(self) -> None:
        """Forget what was sent; there is no update, or it has been made."""
        self.open = False
        self._waiting.clear()
        for matrix in self._by_weight.values():
            matrix.ready, matrix.message = False, None

    def _summed(self, weight: Tensor) -> None:
        if not self.open:
            return
        assert isinstance(weight, nn.Parameter)
        matrix = self._by_weight[weight]
        matrix.ready = True
        self._waiting.append(matrix)
        if sum(math.prod(one.stacked.dealing.shape) for one in self._waiting) >= _MESSAGE:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        if self._waiting:
            _Message(self._sharding, self._waiting)
            self._waiting = []


def _parts(matrix: _Matrix) -> list[Tensor]:
    momentum_rc = matrix.stacked.momentum_Nrc[matrix.number]
    gradient = matrix.weight.grad
    gradient_rc = torch.zeros_like(momentum_rc) if gradient is None else own_part(gradient).float()
    return [gradient_rc.flatten(), momentum_rc.flatten()]


def _elements(matrix: _Matrix, holder: int) -> int:
    return 2 * matrix.stacked.dealing.part_elements(holder)
