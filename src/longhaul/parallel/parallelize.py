"""A model dealt out over a world, and what a training step must do with it beyond the usual.

Enters: a model, a world, `[parallel]`. Leaves: the same model with this rank's parts of its
weights, and a `Parallel`: who holds what, and the collectives around backward passes.
Never knows: optimizers, batches, what the layers compute.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from longhaul.config.parallel import ParallelSection
from longhaul.core.pieces import Cut, Pieces, pieces_of
from longhaul.model.block import Block
from longhaul.model.gpt import GPT
from longhaul.model.initialise import fill_buffers, fill_weight
from longhaul.model.weights import Role, roles
from longhaul.optim.sharding import Sharding, own_part
from longhaul.parallel.data import shard, sum_only_at_the_end
from longhaul.parallel.pipeline import StageGPT, take_stage
from longhaul.parallel.tensor import split_layers
from longhaul.parallel.vocabulary import VocabularyLoss
from longhaul.parallel.world import World


class Parallel:
    """A model that several ranks train together, seen from one of them.

    Args:
        world: all ranks.
        model: this rank's part.
        sharding: who holds what.
        unsummed: parameters whose gradients a backward pass leaves to be summed, by group.
        stage: the same model, if it is a pipeline's stage.
    """

    def __init__(
        self,
        world: World,
        model: GPT,
        sharding: Sharding,
        unsummed: Sequence[tuple[dist.ProcessGroup, Sequence[nn.Parameter]]],
        stage: StageGPT | None = None,
    ) -> None:
        self.world = world
        self.sharding = sharding
        self.parameters = dict(model.named_parameters())
        """By name, this rank's parts, valid also while the model holds gathered weights."""
        self.stage = stage
        self._model = model
        self._unsummed = unsummed

    def before_backward(self, is_last: bool) -> None:
        """Tell the model whether another micro-batch follows."""
        sum_only_at_the_end(self._model, is_last)

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """After the last backward pass: sum what it has not; one collective for each group."""
        for group, parameters in self._unsummed:
            gradients = [own_part(p.grad) for p in parameters if p.grad is not None]
            if gradients:
                _sum_together(gradients, group)

    @property
    def sums_at_once(self) -> bool:
        """Each backward pass leaves whole sums, if it is told that it is the last."""
        return not self._unsummed

    def rows_in_first(self, sequences: int, micro_sequences: int) -> int:
        """Sequences in the first micro-batches of all ranks together.

        Args:
            sequences: of the global batch.
            micro_sequences: computed at once on each rank.
        """
        size = self.world.data_size
        each, more = divmod(sequences, size)
        first, later = min(micro_sequences, each + 1), min(micro_sequences, each)
        return more * first + (size - more) * later

    def rest(self) -> None:
        """Let go of gathered weights, as a forward pass without a backward pass does not."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def parallelize(model: GPT, world: World, settings: ParallelSection, seed: int) -> Parallel:
    """Leave this rank's part of `model`, in place; all ranks call it together.

    Args:
        model: in its number format; filled and on the rank's device, or on `meta`: then each rank
            allocates and fills its own parts alone, and none ever has the whole model.
        world: its mesh has all four dimensions.
        settings: `[parallel]`.
        seed: the run's; what it fills with is what one process would have.
    """
    layout, mesh = world.layout, world.mesh
    elements: dict[Role, int] = {}
    for _, weight, role in roles(model):
        elements[role] = elements.get(role, 0) + weight.numel()
    stage = None
    if layout.pipeline > 1:
        stage = take_stage(model, mesh.get_group("pipeline"), layout.tensor, world.device)
    whole = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    cuts: Mapping[str, Cut] = {}
    if layout.tensor > 1:
        cuts = split_layers(model, mesh.get_group("tensor"))
    left_out: set[str] = set()
    if layout.data_size > 1:
        left_out = _of_another_format(model)
        layers = [block for block in model.blocks if isinstance(block, Block)]
        odd = {p for name, p in model.named_parameters() if name in left_out}
        shard(model, layers, mesh, settings, odd)
    is_empty = any(parameter.is_meta for parameter in model.parameters())
    if is_empty:
        model.to_empty(device=world.device)
    parameters = dict(model.named_parameters())
    tied = "tokens.weight" if stage is not None and model.settings.tied_head else ""
    sharding = Sharding(
        pieces={
            name: _pieces(world, shape, cuts.get(name), name not in left_out, name == tied)
            for name, shape in whole.items()
        },
        roles=elements,
        stages=layout.pipeline,
        world=dist.distributed_c10d._get_default_group(),
        holders=_group(mesh, ("shard", "tensor")),
        replicas=mesh.get_group("replicate"),
        loss_copies=layout.tensor,
    )
    if is_empty:
        _fill_parts(model, parameters, sharding.pieces, seed)
    unsummed = list(_unsummed(world, parameters, set(cuts), left_out, tied))
    return Parallel(world, model, sharding, unsummed, stage)


@torch.no_grad()
def _fill_parts(
    model: GPT, parameters: Mapping[str, nn.Parameter], pieces: Mapping[str, Pieces], seed: int
) -> None:
    """Fill this rank's parts as parts of the whole weights, of which one at a time is made."""
    owners = dict(model.named_modules())
    for name, parameter in parameters.items():
        whole = torch.empty(pieces[name].shape)
        fill_weight(whole, name, owners[name.rpartition(".")[0]], model.settings, seed)
        own = own_part(parameter)
        for piece in pieces[name].mine:
            here, there = (
                tuple(slice(b, b + n) for b, n in zip(begin, piece.size, strict=True))
                for begin in (piece.local, piece.offset)
            )
            own[here] = whole[there].to(own.device, own.dtype)
    first = model.loss.first if isinstance(model.loss, VocabularyLoss) else 0
    fill_buffers(model, first)


def _unsummed(
    world: World,
    parameters: Mapping[str, nn.Parameter],
    cut: set[str],
    left_out: set[str],
    tied: str,
) -> Iterator[tuple[dist.ProcessGroup, list[nn.Parameter]]]:
    """Parameters whose gradients no backward pass sums as far as it must, by group of ranks."""
    mesh = world.mesh
    if world.layout.tensor > 1:
        # Each tensor rank saw its own stretches of the sequences.
        names = parameters.keys() - cut - left_out
        yield mesh.get_group("tensor"), [p for name, p in parameters.items() if name in names]
    for kinds, names in (
        (("replicate", "shard", "tensor"), left_out - cut),
        (("replicate", "shard"), left_out & cut),
    ):
        if names:
            group = _group(mesh, kinds)
            yield group, [p for name, p in parameters.items() if name in names]
    if tied:
        ends = _ends(world)
        if ends is not None:
            yield ends, [parameters[tied]]


def _ends(world: World) -> dist.ProcessGroup | None:
    """The first and the last stage of this rank's pipeline; None in a stage between them.

    Collective: every rank makes the groups of all pipelines.
    """
    places = world.mesh.mesh.flatten(1)
    own = None
    for number in range(places.size(1)):
        ranks = [int(places[0, number]), int(places[-1, number])]
        group = dist.new_group(ranks)
        if world.rank in ranks:
            own = group
    return own


def _pieces(
    world: World, shape: tuple[int, ...], cut: Cut | None, is_sharded: bool, is_at_ends: bool
) -> Pieces:
    layout, mesh = world.layout, world.mesh
    shards = layout.shard if is_sharded else 1
    by_holder = pieces_of(shape, cut, shards, layout.tensor) * (layout.shard // shards)
    tensor, at = mesh.get_local_rank("tensor"), mesh.get_local_rank("shard")
    alike = {"replicate": True, "shard": not is_sharded, "tensor": cut is None}
    return Pieces(
        shape,
        tuple(tuple(pieces) for pieces in by_holder),
        holder=at * layout.tensor + tensor,
        copies=math.prod(mesh[name].size() for name, same in alike.items() if same)
        * (2 if is_at_ends else 1),
        is_first_copy=not (is_at_ends and mesh.get_local_rank("pipeline"))
        and all(mesh.get_local_rank(name) == 0 for name, same in alike.items() if same),
    )


def _of_another_format(model: GPT) -> set[str]:
    """Float32 islands among half weights: FSDP sums gradients of one format only."""
    formats = {parameter.dtype for parameter in model.parameters()}
    if len(formats) == 1:
        return set()
    return {name for name, p in model.named_parameters() if p.dtype == torch.float32}


def _group(mesh: DeviceMesh, names: tuple[str, ...]) -> dist.ProcessGroup:
    """Ranks that differ in these dimensions alone."""
    flat = mesh[names]._flatten("_".join(names))
    return flat.get_group()


def _sum_together(gradients: Sequence[Tensor], group: dist.ProcessGroup) -> None:
    """In place, in float32, by one collective."""
    flat = torch.cat([gradient.flatten().float() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    sums = flat.split([gradient.numel() for gradient in gradients])
    for gradient, total in zip(gradients, sums, strict=True):
        gradient.copy_(total.view_as(gradient))
