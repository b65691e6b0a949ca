"""Data parallelism: weights cut over the shard ranks (FSDP2), copied over the replicate ranks.

Enters: a model, whole or cut by the tensor dimension. Leaves: the same model, which gathers each
layer before it computes and sums its gradients over the ranks after. Never knows: the loss, the
optimizer, what the layers are.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from longhaul.config.parallel import ParallelSection


def shard(
    model: nn.Module,
    layers: Sequence[nn.Module],
    mesh: DeviceMesh,
    settings: ParallelSection,
    left_out: set[nn.Parameter],
) -> None:
    """Cut `model` in place; each of `layers` is gathered by itself, the rest as one.

    Args:
        model: its parameters become DTensors.
        layers: children in the order in which they compute.
        mesh: with dimensions `replicate` and `shard`, of which either may be 1 wide.
        settings: `[parallel]`.
        left_out: parameters that stay whole on every rank; their gradients are not summed here.
    """
    data = mesh["replicate", "shard"] if mesh["replicate"].size() > 1 else mesh["shard"]
    policy = MixedPrecisionPolicy(
        reduce_dtype=torch.float32 if settings.reduce == "float32" else None
    )
    # A sum over ranks that only copy would still be a gathering; let go of nothing then.
    reshard = settings.reshard_after_forward and mesh["shard"].size() > 1
    for module in (*layers, model):
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
    _prefetch(model, layers, settings.prefetch)


def _prefetch(model: nn.Module, layers: Sequence[nn.Module], ahead: int) -> None:
    """Let layer n + 1 be gathered while layer n computes (YaLM-100B's largest gain)."""
    order: list[FSDPModule] = [m for m in (model, *layers) if isinstance(m, FSDPModule)]
    for number, module in enumerate(order):
        module.set_modules_to_forward_prefetch(order[number + 1 : number + 1 + ahead])
        module.set_modules_to_backward_prefetch(order[max(1, number - ahead) : number][::-1])


def sum_only_at_the_end(model: nn.Module, is_last: bool) -> None:
    """Before a backward pass: replicas sum their gradients after the last micro-batch alone."""
    if isinstance(model, FSDPModule):
        model.set_requires_all_reduce(is_last)
        model.set_is_last_backward(is_last)
