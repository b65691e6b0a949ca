"""Data parallelism by FSDP2, and the norm of a step's first gradient, of which ranks have parts."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from longhaul.config.train import ParallelSection
from longhaul.optim.sharding import Sharding, own_part


def shard(
    model: nn.Module,
    stretches: Sequence[Sequence[nn.Module]],
    mesh: DeviceMesh,
    settings: ParallelSection,
    left_out: set[nn.Parameter],
) -> None:
    """Cut `model` in place; each of its layers is gathered by itself, the rest as one.

    `model`: its parameters become DTensors. `stretches`: of layers, each in the order in which they
    compute; of a pipeline there may be several, between which others compute. `mesh`: with
    dimensions `replicate` and `shard`, of which either may be 1 wide. `left_out`: parameters that
    stay whole on every rank; their gradients are not summed here.
    """
    data = mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]
    policy = MixedPrecisionPolicy(
        reduce_dtype=torch.float32 if settings.reduce == "float32" else None
    )
    # A sum over ranks that only copy would still be a gathering; let go of nothing then.
    reshard = settings.reshard_after_forward and mesh["shard"].size() > 1
    for module in (*(layer for layers in stretches for layer in layers), model):
        fully_shard(
            module,
            mesh=data,
            reshard_after_forward=reshard and module is not model,
            mp_policy=policy,
            ignored_params=left_out,
        )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss is a share of the whole batch's: gradients are summed, never averaged. And
            # gloo knows no other sum than the plain one.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if data.device_type == "cpu":
                # Without streams a gathering would block, and whatever is prefetched with it.
                module._set_unshard_async_op(True)
    _prefetch(model, stretches, settings.prefetch)


def _prefetch(model: nn.Module, stretches: Sequence[Sequence[nn.Module]], ahead: int) -> None:
    """Let layer n + 1 be gathered while layer n computes (YaLM-100B's largest gain)."""
    orders: list[list[FSDPModule]] = [
        [layer for layer in layers if isinstance(layer, FSDPModule)] for layers in stretches
    ]
    if isinstance(model, FSDPModule):
        # What comes before the first and after the last layer; with several stretches it cannot
        # tell which of them is next.
        one = orders[0] if len(orders) == 1 else []
        model.set_modules_to_forward_prefetch(one[:ahead])
        model.set_modules_to_backward_prefetch(one[::-1][:ahead] or [model])
    for order in orders:
        for number, module in enumerate(order):
            before = order[max(0, number - ahead) : number][::-1]
            module.set_modules_to_forward_prefetch(order[number + 1 : number + 1 + ahead])
            # Told of the layer that computes FSDP prefetches nothing; told of none, one layer.
            module.set_modules_to_backward_prefetch(before or [module])


Unsummed = Sequence[tuple[dist.ProcessGroup, Sequence[str]]]
"""Names of parameters whose gradients are still to be summed, by the group of ranks to sum over."""


class FirstGradient:
    """The gradient of a step's first micro-batch; copied where only the step's end sums it."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], unsummed: Unsummed, sharding: Sharding
    ) -> None:
        self._parameters, self._unsummed, self._sharding = parameters, unsummed, sharding
        self._waiting = {name for _, names in unsummed for name in names}
        self._copies: dict[str, Tensor] = {}
        self._norms: dict[str, Tensor] = {}

    @torch.no_grad()
    def see(self, elsewhere: Sequence[str] = ()) -> None:
        """Look at new gradients, but for names that begin as in `elsewhere`: of other stages."""
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
    sum_flat(gradients, lambda flat: dist.all_reduce(flat, group=group))


def sum_flat(tensors: Sequence[Tensor], reduce: Callable[[Tensor], object]) -> None:
    """Let `reduce` sum tensors in place, as one in float32."""
    flat = torch.cat([tensor.flatten().float() for tensor in tensors])
    reduce(flat)
    sums = flat.split([tensor.numel() for tensor in tensors])
    for tensor, total in zip(tensors, sums, strict=True):
        tensor.copy_(total.view_as(tensor))
