"""Pipeline parallelism: stretches of layers, one after another, micro-batch by micro-batch.

Each rank has one stretch or several (`timetable` says who does what when). What is sent in one tick
is one group of sends and receives, the same on both sides, and travels while other passes compute.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor, nn

from longhaul.core.pieces import cut_evenly
from longhaul.model.carry import Carry, KeyValueCache
from longhaul.model.gpt import GPT
from longhaul.model.masks import Window, make_sight
from longhaul.model.tap import Tap
from longhaul.parallel.recompute import become


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of one stage over one micro-batch."""

    stage: int
    number: int
    is_forward: bool

    def follows(self, stages: int) -> "Pass | None":
        """The pass that reads what this one sends; None if it sends nothing."""
        stage = self.stage + (1 if self.is_forward else -1)
        return Pass(stage, self.number, self.is_forward) if 0 <= stage < stages else None


Tick = tuple[Pass | None, ...]
"""By rank: what it does at the same time as the others; None while it waits."""


@lru_cache(maxsize=16)
def timetable(ranks: int, stages_per_rank: int, micro_batches: int) -> tuple[Tick, ...]:
    """All passes of a step; what a pass reads was made in an earlier tick.

    Stage s, a stretch of layers, is rank s mod `ranks`'s. With one stage a rank the order is 1F1B
    (PipeDream-Flush, arXiv 2006.09503, figure 3): after a warm-up each rank makes a forward and a
    backward pass in turn. With several it is interleaved 1F1B (arXiv 2104.04473, section 2.2):
    ranks stand idle for a shorter time at the ends of a step, and send more often.
    """
    stages = ranks * stages_per_rank
    queues = [deque(_order(rank, ranks, stages_per_rank, micro_batches)) for rank in range(ranks)]
    made: set[Pass] = set()
    ticks = []
    while any(queues):
        tick = tuple(own[0] if own and _can_begin(own[0], made, stages) else None for own in queues)
        assert any(tick), f"a pipeline of {ranks} × {stages_per_rank} stages waits for itself"
        made.update(own.popleft() for own, one in zip(queues, tick, strict=True) if one is not None)
        ticks.append(tick)
    return tuple(ticks)


def _can_begin(one: Pass, made: set[Pass], stages: int) -> bool:
    if one.is_forward:
        return one.stage == 0 or Pass(one.stage - 1, one.number, True) in made
    if one.stage == stages - 1:
        return Pass(one.stage, one.number, True) in made
    return Pass(one.stage + 1, one.number, False) in made


def _order(rank: int, ranks: int, stages_per_rank: int, micro_batches: int) -> Iterator[Pass]:
    # A round of micro-batches goes through one of a rank's stages, then through its next.
    rounds = max(1, micro_batches // ranks)
    counts = [micro_batches // rounds + (n < micro_batches % rounds) for n in range(rounds)]
    firsts = [sum(counts[:n]) for n in range(rounds)]
    forward, backward = [], []
    for first, count in zip(firsts, counts, strict=True):
        for turn in range(stages_per_rank):
            for number in range(first, first + count):
                back = (stages_per_rank - 1 - turn) * ranks + rank
                forward.append(Pass(turn * ranks + rank, number, True))
                backward.append(Pass(back, number, False))
    after = ranks - 1 - rank
    ahead = after if stages_per_rank == 1 else (stages_per_rank - 1) * counts[0] + 2 * after
    ahead = min(ahead, len(forward))
    yield from forward[:ahead]
    for number, one in enumerate(forward[ahead:]):
        yield one
        yield backward[number]
    yield from backward[len(forward) - ahead :]


def layers_of(layers: int, rank: int, ranks: int, stages_per_rank: int) -> tuple[range, ...]:
    """The layers of each of a rank's stages, in the order in which they compute."""
    spans = cut_evenly(layers, ranks * stages_per_rank)[rank::ranks]
    return tuple(range(first, first + length) for first, length in spans)


Forward = Callable[[Pass, Tensor | None], Tensor]
"""(the pass, what the stage before gave) → activations; in the last stage, a loss."""
Backward = Callable[[Pass, Tensor, Tensor | None], None]
"""(the pass, what `Forward` gave, its gradient from the stage after; None for a loss)."""
Wait = Callable[[], object]


class Pipe:
    """The ranks of a pipeline, in the order of `group`, seen from one of them."""

    def __init__(
        self,
        group: dist.ProcessGroup,
        device: torch.device,
        dtype: torch.dtype,
        stages_per_rank: int = 1,
    ) -> None:
        self._group, self._device, self._dtype = group, device, dtype
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self.stages_per_rank = stages_per_rank
        # NCCL wants all ranks of a group at its first call, and a pipeline begins with two.
        dist.all_reduce(torch.zeros((), device=device), group=group)

    @property
    def stages(self) -> int:
        """Of the whole pipeline."""
        return self.ranks * self.stages_per_rank

    @property
    def own_stages(self) -> range:
        """Of this rank, in the order in which they compute."""
        return range(self.rank, self.stages, self.ranks)

    def run(self, shapes: Sequence[Sequence[int]], forward: Forward, backward: Backward) -> None:
        """Make the passes of micro-batches whose activations have `shapes`; all ranks together."""
        kept: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        coming: dict[Pass, tuple[Tensor, Wait]] = {}
        sent: deque[Wait] = deque()

        def arrived(one: Pass) -> Tensor | None:
            if one not in coming:
                return None
            tensor, wait = coming.pop(one)
            wait()
            return tensor

        def compute(one: Pass) -> Tensor | None:
            if one.is_forward:
                given = arrived(one)
                if given is not None:
                    given.requires_grad_()
                made = forward(one, given)
                kept[one.stage, one.number] = given, made
                return made
            gradient = arrived(one)
            given, made = kept.pop((one.stage, one.number))
            backward(one, made, gradient)
            return None if given is None else given.grad

        for tick in timetable(self.ranks, self.stages_per_rank, len(shapes)):
            own = tick[self.rank]
            made = None if own is None else compute(own)
            give = None if own is None or own.follows(self.stages) is None else made
            takes = [
                (rank, taker)
                for rank, one in enumerate(tick)
                if one is not None
                and (taker := one.follows(self.stages)) is not None
                and taker.stage % self.ranks == self.rank
            ]
            empty = [(rank, self._empty(shapes[taker.number])) for rank, taker in takes]
            to = None if own is None else self._neighbour(1 if own.is_forward else -1)
            given = None if give is None or to is None else (to, give)
            waits, wait_for_sent = self.post(given, empty)
            for (_, taker), (_, tensor), wait in zip(takes, empty, waits, strict=True):
                coming[taker] = tensor, wait
            sent.append(wait_for_sent)
            # By now the neighbour has long taken them; what was sent is let go of.
            if len(sent) > 2 * self.ranks:
                sent.popleft()()
        while sent:
            sent.popleft()()

    def post(
        self, give: tuple[int, Tensor] | None, takes: Sequence[tuple[int, Tensor]]
    ) -> tuple[list[Wait], Wait]:
        """Begin to send to and receive from ranks; how to wait for each of `takes`, and `give`."""
        operations = [
            dist.P2POp(dist.irecv, tensor, dist.get_global_rank(self._group, rank), self._group)
            for rank, tensor in takes
        ]
        if give is not None:
            rank, tensor = give
            tensor = tensor.detach().to(self._dtype).contiguous()
            peer = dist.get_global_rank(self._group, rank)
            operations.append(dist.P2POp(dist.isend, tensor, peer, self._group))
        if not operations:
            return [], _nothing
        works = dist.batch_isend_irecv(operations)
        # NCCL has one for all of them.
        works = works if len(works) == len(operations) else works * len(operations)
        waits: list[Wait] = [work.wait for work in works]
        return waits[: len(takes)], waits[-1] if give is not None else _nothing

    def take(self, shape: Sequence[int]) -> Tensor:
        """What the stage before a stage of this rank gives, outside of `run`."""
        taken = self._empty(shape)
        waits, _ = self.post(None, [(self._neighbour(-1), taken)])
        waits[0]()
        return taken

    def give(self, tensor: Tensor) -> None:
        """Give it to the stage after a stage of this rank, outside of `run`."""
        self.post((self._neighbour(1), tensor), [])[1]()

    def _neighbour(self, step: int) -> int:
        return (self.rank + step) % self.ranks

    def _empty(self, shape: Sequence[int]) -> Tensor:
        return torch.empty(tuple(shape), dtype=self._dtype, device=self._device)

    def tell_loss(self, loss: Tensor | None) -> Tensor:
        """The last stage's loss, at all ranks."""
        return self._told(torch.zeros((), device=self._device) if loss is None else loss.float())

    def tell_logits(self, logits_BTV: Tensor | None, shape: Sequence[int]) -> Tensor:
        """The last stage's logits in float32, at all ranks; `shape` is that of the tokens."""
        columns = 0 if logits_BTV is None else logits_BTV.size(-1)
        width = int(self._told(torch.tensor(columns, device=self._device)))
        if logits_BTV is None:
            logits_BTV = torch.empty(*shape, width, device=self._device)
        return self._told(logits_BTV.float().contiguous())

    def _told(self, shared: Tensor) -> Tensor:
        dist.broadcast(shared, dist.get_global_rank(self._group, self.ranks - 1), self._group)
        return shared


def _nothing() -> None:
    """There is nothing to wait for."""


class StageGPT(GPT):
    """A model of which this rank has some layers: one stage of a pipeline, or several."""

    pipe: Pipe
    layers: tuple[range, ...]
    """Of each of its stages, in the order in which they compute."""
    stretches: int
    """Tensor ranks, each of which has its stretch of a sequence between layers."""

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor | None = None,
        *,
        tap: Tap | None = None,
        window: Window = None,
        cache: KeyValueCache | None = None,
        stage: int | None = None,
        given_BTD: Tensor | None = None,
    ) -> Tensor:
        """Activations for the next stage, or the last stage's loss; without targets its logits.

        `stage`: of this rank. None: all stages pass activations on by themselves, without
        gradients, and all ranks have the loss. `given_BTD`: of the one before; None in the first.
        """
        assert cache is None, "a stage reads the whole text for each token"
        carry = Carry(
            sight=make_sight(self.settings, tokens_BT, window, 0, self.end_of_text),
            rotation=self.rotary(tokens_BT.size(1), 0) if self.rotary is not None else None,
            tap=tap,
            clamp=self.residual_clamp,
        )
        if stage is not None:
            return self._stage(stage, tokens_BT, targets_BT, carry, given_BTD)
        assert not torch.is_grad_enabled(), "a backward pass needs to know the stage"
        last = None
        for own in self.pipe.own_stages:
            given_BTD = self.pipe.take(self.shape_of(tokens_BT)) if own else None
            made = self._stage(own, tokens_BT, targets_BT, carry, given_BTD)
            if self.makes_loss(own):
                last = made
            else:
                self.pipe.give(made)
        if targets_BT is None:
            return self.pipe.tell_logits(last, tokens_BT.shape)
        return self.pipe.tell_loss(last)

    def _stage(
        self,
        stage: int,
        tokens_BT: Tensor,
        targets_BT: Tensor | None,
        carry: Carry,
        given_BTD: Tensor | None,
    ) -> Tensor:
        x_BTD = self._embedded(tokens_BT, None, 0) if given_BTD is None else given_BTD
        for layer in self.layers[stage // self.pipe.ranks]:
            x_BTD = self.blocks[layer](x_BTD, carry, None)
        if not self.makes_loss(stage):
            return x_BTD
        x_BTD = self._before_head(x_BTD)
        if targets_BT is None:
            return self._logits(x_BTD)[..., : self.vocab_size]
        return self._summed_loss(x_BTD, targets_BT, carry.tap)

    def makes_loss(self, stage: int) -> bool:
        """Whether it is the last of all."""
        return stage == self.pipe.stages - 1

    def shape_of(self, tokens_BT: Tensor) -> tuple[int, int, int]:
        """Of the activations between stages."""
        batch, length = tokens_BT.shape
        return batch, length // self.stretches, self.settings.width


def take_stages(model: GPT, pipe: Pipe, stretches: int) -> StageGPT:
    """Leave this rank's stretches of `model`, in place; a tied head's table is at both ends."""
    layers = layers_of(len(model.blocks), pipe.rank, pipe.ranks, pipe.stages_per_rank)
    own = {layer for span in layers for layer in span}
    for layer in range(len(model.blocks)):
        if layer not in own:
            model.blocks[layer] = nn.Identity()
    is_first, is_last = pipe.rank == 0, pipe.rank == pipe.ranks - 1
    unused = [] if is_first else ["smear", "bigrams", "project_in", "positions", "embedding_norm"]
    if not is_first and not (is_last and model.head is None):
        unused.append("tokens")
    if not is_last:
        unused += ["head", "final_norm", "project_out"]
    for name in unused:
        setattr(model, name, None)
    staged = become(model, StageGPT)
    staged.pipe, staged.layers, staged.stretches = pipe, layers, stretches
    return staged
