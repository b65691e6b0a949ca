"""Pipeline parallelism: stretches of layers, one after another, micro-batch by micro-batch.

The order is 1F1B (PipeDream-Flush, arXiv 2006.09503, figure 3): after a warm-up each stage makes a
forward and a backward pass in turn, so that it never holds more micro-batches than there are
stages after it. Activations go from stage to stage by send and receive; their shape is known from
the batch, so nothing has to be inferred.

Enters: a model, the pipeline's ranks; micro-batches. Leaves: this rank's stretch of the model; the
passes over it, in order. Never knows: losses' sums, shards, optimizers.
"""

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longhaul.core.pieces import cut_evenly
from longhaul.model.cache import KeyValueCache
from longhaul.model.carry import Carry
from longhaul.model.gpt import GPT
from longhaul.model.masks import make_sight
from longhaul.model.tap import Tap
from longhaul.parallel.become import become

Forward = Callable[[int, Tensor | None], Tensor]
"""(number of the micro-batch, what the stage before gave) → activations; in the last stage, a
loss."""
Backward = Callable[[int, Tensor, Tensor | None], None]
"""(number, what `Forward` gave, its gradient from the stage after; None for a loss)."""


class Pipe:
    """Neighbours in a pipeline.

    Args:
        group: ranks of the pipeline, stage by stage.
        device: of activations.
        dtype: of activations on their way.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, dtype: torch.dtype) -> None:
        self._group, self._device, self._dtype = group, device, dtype
        self.stage, self.stages = dist.get_rank(group), dist.get_world_size(group)

    @property
    def is_first(self) -> bool:
        """It reads tokens."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """It computes the loss."""
        return self.stage == self.stages - 1

    def run(self, shapes: Sequence[Sequence[int]], forward: Forward, backward: Backward) -> None:
        """Make the passes of all micro-batches; all stages call it together.

        Args:
            shapes: of each micro-batch's activations.
            forward: a forward pass of this stage.
            backward: a backward pass; it fills the gradient of what the stage before gave.
        """
        waiting: deque[tuple[int, Tensor | None, Tensor]] = deque()
        ahead = min(self.stages - self.stage - 1, len(shapes))

        def go_forward(number: int, given: Tensor | None) -> Tensor:
            made = forward(number, given)
            waiting.append((number, given, made))
            return made

        def go_backward(gradient: Tensor | None) -> Tensor | None:
            number, given, made = waiting.popleft()
            backward(number, made, gradient)
            return None if given is None else given.grad

        for number in range(ahead):
            given, _ = self.exchange(take=shapes[number])
            self.exchange(give=go_forward(number, given))
        given = self.exchange(take=shapes[ahead])[0] if ahead < len(shapes) else None
        for number in range(ahead, len(shapes)):
            made = go_forward(number, given)
            _, gradient = self.exchange(give=made, take_back=shapes[waiting[0][0]])
            following = shapes[number + 1] if number + 1 < len(shapes) else None
            given, _ = self.exchange(give_back=go_backward(gradient), take=following)
        while waiting:
            _, gradient = self.exchange(take_back=shapes[waiting[0][0]])
            self.exchange(give_back=go_backward(gradient))

    def exchange(
        self,
        give: Tensor | None = None,
        give_back: Tensor | None = None,
        take: Sequence[int] | None = None,
        take_back: Sequence[int] | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Send to the neighbours and receive from them, all at once.

        At an end of the pipeline what has no neighbour is left out.

        Args:
            give: activations for the stage after.
            give_back: a gradient for the stage before.
            take: shape of the activations to receive.
            take_back: shape of the gradient to receive.

        Returns:
            The activations, ready for a gradient of their own; the gradient.
        """
        operations: list[dist.P2POp] = []
        taken: list[Tensor | None] = [None, None]
        for tensor, shape, step, place in (
            (give_back, take, -1, 0),
            (give, take_back, 1, 1),
        ):
            if not 0 <= self.stage + step < self.stages:
                continue
            peer = dist.get_global_rank(self._group, self.stage + step)
            if tensor is not None:
                sent = tensor.detach().to(self._dtype).contiguous()
                operations.append(dist.P2POp(dist.isend, sent, peer, self._group))
            if shape is not None:
                empty = torch.empty(tuple(shape), dtype=self._dtype, device=self._device)
                taken[place] = empty
                operations.append(dist.P2POp(dist.irecv, empty, peer, self._group))
        if operations:
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        if taken[0] is not None and torch.is_grad_enabled():
            taken[0].requires_grad_()
        return taken[0], taken[1]

    def tell_loss(self, loss: Tensor | None) -> Tensor:
        """The last stage's loss, at all stages."""
        told = torch.zeros((), device=self._device) if loss is None else loss.float()
        dist.broadcast(told, dist.get_global_rank(self._group, self.stages - 1), self._group)
        return told


class StageGPT(GPT):
    """A model of which this rank has some layers."""

    pipe: Pipe
    layers: range
    stretches: int
    """Tensor ranks, each of which has its stretch of a sequence between layers."""

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        *,
        tap: Tap | None = None,
        window: int | None = None,
        cache: KeyValueCache | None = None,
        given_BTD: Tensor | None = None,
    ) -> Tensor:
        """Activations for the next stage, or the last stage's loss.

        Without gradients the stages pass activations on by themselves, and all have the loss.
        """
        assert cache is None, "a stage writes no text"
        alone = not torch.is_grad_enabled()
        if alone:
            given_BTD, _ = self.pipe.exchange(take=self.shape_of(tokens_BT))
        x_BTD = self._embedded(tokens_BT, None, 0) if given_BTD is None else given_BTD
        carry = Carry(
            sight=make_sight(self.settings, tokens_BT, window, 0, self.end_of_text),
            rotation=self.rotary(tokens_BT.size(1), 0) if self.rotary is not None else None,
            tap=tap,
        )
        for layer in self.layers:
            x_BTD = self.blocks[layer](x_BTD, carry, None)
        loss_BTD = x_BTD
        if self.pipe.is_last:
            assert targets_BT is not None
            z_loss = self.settings.z_loss if self.training else 0.0
            loss_BTD = self.loss(self._logits(x_BTD), targets_BT, z_loss, tap)
        if not alone:
            return loss_BTD
        self.pipe.exchange(give=x_BTD)
        return self.pipe.tell_loss(loss_BTD if self.pipe.is_last else None)

    def shape_of(self, tokens_BT: Tensor) -> tuple[int, int, int]:
        """Of the activations between stages."""
        batch, length = tokens_BT.shape
        return batch, length // self.stretches, self.settings.width


def take_stage(
    model: GPT, group: dist.ProcessGroup, stretches: int, device: torch.device
) -> StageGPT:
    """Leave this rank's stretch of `model`, in place; names of weights stay.

    Args:
        model: whole. With a tied head the first and the last stage both have the token table.
        group: ranks of the pipeline.
        stretches: tensor ranks.
        device: of activations.
    """
    dtype = torch.float32 if model.widens else model.tokens.weight.dtype
    pipe = Pipe(group, device, dtype)
    begin, length = cut_evenly(len(model.blocks), pipe.stages)[pipe.stage]
    for layer in range(len(model.blocks)):
        if not begin <= layer < begin + length:
            model.blocks[layer] = nn.Identity()
    unused = [] if pipe.is_first else ["bigrams", "project_in", "positions", "embedding_norm"]
    if not pipe.is_first and not (pipe.is_last and model.head is None):
        unused.append("tokens")
    if not pipe.is_last:
        unused += ["head", "final_norm", "project_out"]
    for name in unused:
        setattr(model, name, None)
    stage = become(model, StageGPT)
    stage.pipe, stage.layers, stage.stretches = pipe, range(begin, begin + length), stretches
    return stage
