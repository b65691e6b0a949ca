"""A model dealt out over a world, and what a training step must do with it beyond the usual."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from longhaul.config.train import ParallelSection
from longhaul.core.pieces import Cut, Pieces, pieces_of
from longhaul.model.gpt import GPT
from longhaul.model.initialise import fill_buffers, fill_weight
from longhaul.model.weights import Role, roles
from longhaul.optim.sharding import Sharding, own_part
from longhaul.parallel.data import FirstGradient, Unsummed, shard, sum_together
from longhaul.parallel.pipeline import Pipe, StageGPT, take_stages
from longhaul.parallel.tensor import VocabularyLoss, split_layers
from longhaul.parallel.world import World


@dataclass(eq=False)
class Parallel:
    """A model that several ranks train together, seen from one of them."""

    world: World
    _model: GPT
    sharding: Sharding
    _unsummed: Unsummed
    staged: StageGPT | None

    def __post_init__(self) -> None:
        self.parameters = dict(self._model.named_parameters())
        """By name, this rank's parts, valid also while the model holds gathered weights."""

    def before_backward(self, is_last: bool, is_last_of_all: bool = True) -> None:
        """Replicas sum their gradients after the last micro-batch alone.

        `is_last`: no other backward pass of the same stage follows, or the sums are needed now.
        `is_last_of_all`: nor one of another stage of this rank.
        """
        if isinstance(self._model, FSDPModule):
            self._model.set_requires_all_reduce(is_last)
            self._model.set_is_last_backward(is_last and is_last_of_all)

    @torch.no_grad()
    def sum_gradients(self) -> None:
        """After the last backward pass: sum what it has not; one collective for each group."""
        for group, names in self._unsummed:
            given = [self.parameters[name].grad for name in names]
            gradients = [own_part(gradient) for gradient in given if gradient is not None]
            if gradients:
                sum_together(gradients, group)

    def first_gradient(self) -> FirstGradient:
        """To be shown the gradients of a step's first micro-batch."""
        return FirstGradient(self.parameters, self._unsummed, self.sharding)

    def layers_elsewhere(self, stage: int) -> tuple[str, ...]:
        """Beginnings of the names of weights in this rank's other stages of the pipeline."""
        assert self.staged is not None
        spans = zip(self.staged.pipe.own_stages, self.staged.layers, strict=True)
        return tuple(f"blocks.{layer}." for own, span in spans if own != stage for layer in span)

    def rows_in_first(self, sequences: int, micro_sequences: int) -> int:
        """In the first micro-batches of all ranks together, `micro_sequences` at once on each."""
        size = self.world.data_size
        each, more = divmod(sequences, size)
        first, later = min(micro_sequences, each + 1), min(micro_sequences, each)
        return more * first + (size - more) * later

    def accumulating(self) -> list[nn.Parameter]:
        """Parameters where backward passes leave this rank's gradients, in an order of all."""
        found: dict[int, nn.Parameter] = {}
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.unshard()
                found |= {id(p): p for p in module.parameters() if own_part(p) is p}
                module.reshard()
        return list(found.values())

    def rest(self) -> None:
        """Let go of gathered weights, as a forward pass without a backward pass does not."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def parallelize(model: GPT, world: World, settings: ParallelSection, seed: int) -> Parallel:
    """Leave this rank's part of `model`, in place; all ranks call it together.

    `model`: in its number format; filled and on the rank's device, or on `meta`: then each rank
    allocates and fills its own parts alone, and none ever has the whole model. `world`: its mesh
    has all four dimensions. `seed`: the run's; what it fills with is what one process would have.
    """
    layout, mesh = world.layout, world.mesh
    elements: dict[Role, int] = {}
    weights: dict[Role, int] = {}
    for _, weight, role in roles(model):
        elements[role] = elements.get(role, 0) + weight.numel()
        weights[role] = weights.get(role, 0) + 1
    staged = None
    stretches: tuple[range, ...] = (range(len(model.blocks)),)
    if layout.pipeline > 1:
        dtype = torch.float32 if model.widens else model.tokens.weight.dtype
        pipe = Pipe(mesh.get_group("pipeline"), world.device, dtype, settings.stages_per_rank)
        staged = take_stages(model, pipe, layout.tensor)
        stretches = staged.layers
    whole = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    cuts: Mapping[str, Cut] = {}
    if layout.tensor > 1:
        cuts = split_layers(model, mesh.get_group("tensor"))
    left_out: set[str] = set()
    if layout.data_size > 1:
        left_out = _of_another_format(model)
        layers = [[model.blocks[layer] for layer in stretch] for stretch in stretches]
        odd = {p for name, p in model.named_parameters() if name in left_out}
        shard(model, layers, mesh, settings, odd)
    is_empty = any(parameter.is_meta for parameter in model.parameters())
    if is_empty:
        model.to_empty(device=world.device)
    parameters = dict(model.named_parameters())
    tied = "tokens.weight" if staged is not None and model.settings.tied_head else ""
    unsummed = list(_unsummed(world, parameters, set(cuts), left_out, tied))
    sharding = Sharding(
        pieces={
            name: _pieces(world, shape, cuts.get(name), name not in left_out, name == tied)
            for name, shape in whole.items()
        },
        roles=elements,
        weights=weights,
        stages=layout.pipeline * settings.stages_per_rank,
        world=dist.distributed_c10d._get_default_group(),
        holders=_group(mesh, ("shard", "tensor")),
        replicas=mesh.get_group("replicate"),
        loss_copies=layout.tensor,
        summed_late=frozenset(name for _, names in unsummed for name in names),
    )
    if is_empty:
        _fill_parts(model, parameters, sharding.pieces, seed)
    return Parallel(world, model, sharding, unsummed, staged)


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
            own[piece.here] = whole[piece.there].to(own.device, own.dtype)
    first = model.loss.first if isinstance(model.loss, VocabularyLoss) else 0
    fill_buffers(model, first)


def _unsummed(
    world: World,
    parameters: Mapping[str, nn.Parameter],
    cut: set[str],
    left_out: set[str],
    tied: str,
) -> Iterator[tuple[dist.ProcessGroup, list[str]]]:
    """Names of parameters whose gradients no backward pass sums as far as it must, by group."""
    mesh = world.mesh
    if world.layout.tensor > 1:
        # Each tensor rank saw its own stretches of the sequences.
        names = parameters.keys() - cut - left_out
        yield mesh.get_group("tensor"), [name for name in parameters if name in names]
    for kinds, names in (
        (("replicate", "shard", "tensor"), left_out - cut),
        (("replicate", "shard"), left_out & cut),
    ):
        if names:
            group = _group(mesh, kinds)
            yield group, [name for name in parameters if name in names]
    if tied:
        ends = _ends(world)
        if ends is not None:
            yield ends, [tied]


def _ends(world: World) -> dist.ProcessGroup | None:
    """The first and last stage of this rank's pipeline; None between them. Collective."""
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
