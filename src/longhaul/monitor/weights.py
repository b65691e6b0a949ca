"""Gauges of weights, gradients and updates, for each role of weights. Norms are of all elements;
what is compared element by element is compared in a sample: all of a weight of fewer than 131,072
elements, else every so-manyth, 65,536 or somewhat fewer.

Shape suffixes: W weights of a role, S their sampled elements, R roles, G gauges.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from longhaul.model.device import to_device
from longhaul.model.tap import Gauge
from longhaul.model.weights import Role
from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group
from longhaul.optim.optimizer import LiveSettings, Optimizer
from longhaul.optim.sharding import Sharding, own_part

ABSENT = -1.0
"""Stands for a reading that there is none of; no gauge of a role is ever negative."""

ROLE_GAUGES = (
    Gauge(
        "gradient_norm", "nat / weight", "norm",
        "root of the summed squares of the loss's gradient, unscaled, before clipping", "role",
    ),
    Gauge(
        "weight_norm", "weight", "norm",
        "root of the summed squares of the weights, before the update", "role",
    ),
    Gauge(
        "update_ratio", "ratio", "norm",
        "norm of the update over `weight_norm`; 0 if masked, or if all weights are 0 "
        "(sampled)", "role",
    ),
    Gauge(
        "second_moment_ratio", "ratio", "rms",
        "root mean square of g/√v̂, the clipped gradient over Adam's second moment with this step "
        "in it (arXiv 2304.13013, algorithm 2): about 1 is healthy, above 2.3 the moments have "
        "fallen behind; absent for rules without second moments (sampled)", "role",
    ),
    Gauge(
        "gradient_zero_share", "share", "mean",
        "gradient elements that are exactly 0, such as those flushed to zero in fp16 "
        "(sampled)", "role",
    ),
)  # fmt: skip

_SAMPLE = 1 << 16


class WeightGauges:
    """Reads the roles' gauges around an update; of sharded weights, those of the whole."""

    def __init__(self, groups: Sequence[Group], sharding: Sharding | None = None) -> None:
        self._sharding = sharding
        # Made once: a copy from the host would wait for the device.
        self._samples = [
            _Sample(group.parameters)
            if sharding is None
            else _Sample(
                group.parameters,
                [sharding.pieces[name].copies for name in group.names],
                sharding.roles[group.role],
            )
            for group in groups
        ]
        roles = [group.role for group in groups] if sharding is None else sharding.roles
        self.names = [f"{gauge.name}.{role}" for role in roles for gauge in ROLE_GAUGES]
        """Of the readings in a drained tensor: `gauge.role`."""
        self._readings_RG: Tensor | None = None

    @contextmanager
    def watch(self, optimizer: Optimizer, gate: Gate, scale: Tensor | None) -> Iterator[None]:
        """Read before and after the update that is made in the body, of judged gradients."""
        roles = list(zip(optimizer.groups, self._samples, strict=True))
        before = [_look(group, sample, gate, self._sharding) for group, sample in roles]
        yield
        settings, state = optimizer.live_settings(), optimizer.tensors()
        shares = {
            group.role: _shares(look, group, sample, settings, state)
            for look, (group, sample) in zip(before, roles, strict=True)
        }
        whole = list(shares.values())
        if self._sharding is not None:
            whole = _added_up(shares, self._sharding)
        self._readings_RG = torch.stack([_readings(of_role, scale) for of_role in whole])

    def drain(self) -> Tensor:
        """Readings of the last update that was watched, role by role."""
        assert self._readings_RG is not None
        return self._readings_RG.flatten()


def present(names: Sequence[str], readings: Sequence[float]) -> dict[str, float]:
    """Drained readings on the host by name, those that there are."""
    named = zip(names, readings, strict=True)
    return {name: value for name, value in named if value != ABSENT}


class _Sample:
    """Which elements of a role's weights are compared: the same in every step. Of sharded weights,
    so many ranks hold `copies` of each, and the whole role has so many `elements`.
    """

    def __init__(
        self, weights: Sequence[Tensor], copies: Sequence[int] = (), elements: int = 0
    ) -> None:
        weights = [own_part(weight) for weight in weights]
        self._strides = [_stride(weight) for weight in weights]
        sizes = [weight.numel() for weight in weights]
        whole, copies = elements or sum(sizes), copies or [1] * len(sizes)
        # Rounded up: the first element is always taken.
        counts = [-(-size // stride) for size, stride in zip(sizes, self._strides, strict=True)]
        shares = [
            size / max(count, 1) / (whole * times)
            for size, count, times in zip(sizes, counts, copies, strict=True)
        ]
        device = weights[0].device
        self._size = sum(counts)
        self._counts_W = torch.tensor(counts, device=device)
        self._shares_W = torch.tensor(shares, device=device)
        self.elements = whole
        """Of the role, sampled or not."""

    def of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Elements [S] of the weights, or of tensors that are shaped like them; a float32 copy."""
        taken = zip(map(own_part, tensors), self._strides, strict=True)
        return torch.cat([tensor.flatten()[::stride] for tensor, stride in taken]).float()

    def spread(self, value_W: Tensor) -> Tensor:
        """A number of each weight, for each of its elements [S]."""
        return value_W.repeat_interleave(self._counts_W, output_size=self._size)

    def mean(self, value_S: Tensor) -> Tensor:
        """Estimate of the mean over the role's elements; of sharded weights, this rank's share."""
        return (value_S * self.spread(self._shares_W)).sum()


@dataclass(frozen=True, slots=True)
class _Look:
    """A role before the update."""

    gradient_norm: Tensor
    """Of the gradient as it is, scaled or not."""
    weight_norm: Tensor
    gradient_S: Tensor
    """What the update rule will see: unscaled and clipped."""
    weight_S: Tensor


@torch.no_grad()
def _look(group: Group, sample: _Sample, gate: Gate, sharding: Sharding | None) -> _Look:
    # The update rule leaves a weight without a gradient alone, as it does one with zeros.
    gradients = [
        torch.zeros_like(own_part(weight)) if weight.grad is None else own_part(weight.grad)
        for weight in group.parameters
    ]
    weights = [own_part(weight) for weight in group.parameters]
    gradient_S = sample.of(gradients)
    return _Look(
        gradient_norm=tensors_norm(gradients, group.names, sharding),
        weight_norm=tensors_norm(weights, group.names, sharding),
        gradient_S=gradient_S if gate.divisor is None else gradient_S / gate.divisor,
        weight_S=sample.of(group.parameters),
    )


Shares = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Of a role: norm of the gradient and of the weights; square of the update's norm; mean square of
the gradient over the second moment (`ABSENT` if there is none); share of zeros."""


@torch.no_grad()
def _shares(
    look: _Look, group: Group, sample: _Sample, settings: LiveSettings, state: Mapping[str, Tensor]
) -> Shares:
    """What this rank has of a role's figures, after the update."""
    moved_S = sample.of(group.parameters) - look.weight_S
    moved = sample.mean(moved_S.square()) * sample.elements
    zeros = sample.mean(look.gradient_S == 0)
    over = look.weight_norm.new_full((), ABSENT)
    if f"{group.names[0]}.exp_avg_sq" in state:
        beta2, eps = (float(settings[f"{group.role}.{name}"]) for name in ("beta2", "eps"))
        steps_W = torch.stack([state[f"{name}.step"] for name in group.names])
        # Where no update was made yet the moment is 0 whatever it is divided by.
        bias_W = torch.where(steps_W > 0, 1.0 - beta2**steps_W, 1.0)
        moment_S = sample.of([state[f"{name}.exp_avg_sq"] for name in group.names])
        # They may live on the host.
        bias_W, moment_S = (to_device(it, look.weight_S.device) for it in (bias_W, moment_S))
        moment_S /= sample.spread(bias_W)
        over = sample.mean(look.gradient_S.square() / moment_S.clamp_min_(eps * eps))
    return look.gradient_norm, look.weight_norm, moved, over, zeros


@torch.no_grad()
def _added_up(shares: Mapping[Role, Shares], sharding: Sharding) -> list[Shares]:
    """The roles' figures from all ranks' shares; some ranks may lack a role."""
    zero = next(iter(shares.values()))[0].new_zeros(())
    flat = []
    for role in sharding.roles:
        lacking = (zero, zero, zero, zero + ABSENT, zero)
        gradient, weight, moved, over, zeros = shares.get(role, lacking)
        there = over != ABSENT
        flat += [gradient.square(), weight.square(), moved, over * there, there.float(), zeros]
    sums_RG = sharding.sum(torch.stack(flat)).view(len(sharding.roles), -1)
    return [
        (gradient.sqrt(), weight.sqrt(), moved, torch.where(ranks > 0, over, ABSENT), zeros)
        for gradient, weight, moved, over, ranks, zeros in sums_RG
    ]


@torch.no_grad()
def _readings(shares: Shares, scale: Tensor | None) -> Tensor:
    """In the order of `ROLE_GAUGES`."""
    gradient_norm, weight_norm, moved, over, zeros = shares
    update_ratio = (moved.sqrt() / weight_norm).masked_fill(weight_norm == 0, 0.0)
    return torch.stack(
        (
            gradient_norm if scale is None else gradient_norm / scale,
            weight_norm,
            update_ratio,
            torch.where(over == ABSENT, ABSENT, over.sqrt()),
            zeros,
        )
    )


@torch.no_grad()
def tensors_norm(
    tensors: Sequence[Tensor], names: Sequence[str] = (), sharding: Sharding | None = None
) -> Tensor:
    """Root of the summed squares over all, in float32; of sharded weights, this rank's share."""
    norms = torch._foreach_norm(list(tensors), 2, torch.float32)
    if sharding is not None:
        return sharding.own_share(norms, names)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _stride(tensor: Tensor) -> int:
    stride = max(1, tensor.numel() // _SAMPLE)
    # It shares no factor with the length of a row, so that no column is left out.
    while math.gcd(stride, tensor.size(-1)) > 1:
        stride += 1
    return stride
