"""Muon: momentum made orthogonal, for matrices, by matrix products alone (Newton-Schulz).

Shape suffixes: N matrices of one shape, R rows, C columns.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from longhaul.config.optim import OptimSection
from longhaul.model.device import queues
from longhaul.optim.early import EarlyExchange, Stacked
from longhaul.optim.gate import Gate
from longhaul.optim.groups import Group
from longhaul.optim.optimizer import Rule, hush, shrink_by, shrinking_where_agreed
from longhaul.optim.sharding import (
    Dealing,
    Sharding,
    Task,
    Travel,
    cut_alike,
    overlap,
    own_part,
)
from longhaul.optim.state import host_zeros, lent

# Keller Jordan's quintic (kellerjordan.github.io/posts/muon): steepest at 0 rather than exact, so
# that five rounds bring every singular value of a random matrix to between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Polar Express (Amsel and others, 2025, arXiv 2505.16932, algorithm 1): for each round the quintic
# that leaves the least error, from singular values of 1e-3 on; the last one for all that follow.
POLAR_EXPRESS = (
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
)
_SAFETY = 1.01  # Rounding must not carry a singular value beyond what a round was made for.
_Round = tuple[float, float, float]
_EPS = 1e-7  # Only keeps a zero matrix zero.
# Columns over rows beyond which five rounds on x·xᵀ take fewer multiplications than on x.
_WIDE = 1.5
# A round multiplies a rounding error of x·xᵀ by up to 12, or 17 and 68: 1e-7 stays small.
_ROUNDS_OF_A_GRAM = 5


def newton_schulz(
    stack_NRC: Tensor, steps: int, dtype: torch.dtype, polar_express: bool = False
) -> Tensor:
    """Make each matrix orthogonal, its singular vectors kept.

    Args:
        stack_NRC: float32, of any scale.
        steps: rounds of x ← a·x + (b·x·xᵀ + c·(x·xᵀ)²)·x.
        dtype: format of the products; bfloat16 is precise enough, the result feeds them again.
        polar_express: a, b and c of their own for each round, so that fewer do.

    Returns:
        float32 [N, R, C]. A matrix of zeros stays one; NaN fills its own matrix.
    """
    tall = stack_NRC.size(1) > stack_NRC.size(2)
    # The norm bounds the largest singular value by 1; in float32, where its square fits.
    norm_N11 = torch.linalg.vector_norm(stack_NRC, dim=(1, 2), keepdim=True)
    x = (stack_NRC / (norm_N11 + _EPS)).to(dtype)
    if tall:
        x = x.mT.contiguous()  # x·xᵀ of the smaller size
    rounds = _polar_express(steps) if polar_express else [COEFFICIENTS] * steps
    # Half precision loses too much in x·xᵀ to go on from it (Dao and others, 2026).
    if dtype == torch.float32 and x.size(2) > _WIDE * x.size(1):
        for begin in range(0, steps, _ROUNDS_OF_A_GRAM):
            x = _rounds_on_gram(x, rounds[begin : begin + _ROUNDS_OF_A_GRAM])
    else:
        for a, b, c in rounds:
            gram = torch.bmm(x, x.mT)
            bent = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            x = torch.baddbmm(x, bent, x, beta=a)
    orthogonal_NRC: Tensor = x.mT if tall else x
    return orthogonal_NRC.float()


def _polar_express(steps: int) -> list[_Round]:
    last = len(POLAR_EXPRESS) - 1
    found = [POLAR_EXPRESS[min(number, last)] for number in range(steps)]
    return [(a / _SAFETY, b / _SAFETY**3, c / _SAFETY**5) for a, b, c in found]


def _rounds_on_gram(x: Tensor, rounds: Sequence[_Round]) -> Tensor:
    """The same on the small x·xᵀ (Gram Newton-Schulz, dao-lab.ai/blog/2026), then once on x."""
    gram = torch.bmm(x, x.mT)
    together = None
    for number, (a, b, c) in enumerate(rounds, start=1):
        bent = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        bent.diagonal(dim1=1, dim2=2).add_(a)
        together = bent if together is None else torch.bmm(bent, together)
        if number < len(rounds):
            gram = torch.bmm(bent, torch.bmm(gram, bent))
    return x if together is None else torch.bmm(together, x)


def bf16_is_fast(device: torch.device) -> bool:
    """Whether a device multiplies matrices faster in bfloat16 than in float32."""
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "xpu"


_FIRST_MOMENTUM = 0.85  # Where the warm-up begins (modded-nanogpt).
# Matrices are stacked up to this many elements: more would only borrow more memory.
_MOST_IN_STACK = 1 << 24
# Elements of whole gradients and momenta that a rank is sent before the update, 1 GB: what does not
# fit travels after the backward pass, beside the products of other stacks.
_MOST_EARLY = 1 << 28


@dataclass(frozen=True, slots=True)
class _Stack:
    """Matrices of one shape, updated by the same few calls."""

    names: tuple[str, ...]
    parameters: tuple[nn.Parameter, ...]
    parts: tuple[int, ...]
    """Rows of each fused map."""
    momentum_NRC: Tensor
    """float32, on the host if offloaded; of sharded weights, this process's parts."""
    dealing: Dealing | None
    """How whole matrices come out of parts; None where the weights are whole."""
    early: Stacked | None
    """How they set out during the backward pass; None if they do not."""


class MuonRule(Rule):
    """Muon (Keller Jordan et al., 2024; arXiv 2502.16982), the arithmetic of `torch.optim.Muon`.

    A matrix moves by lr · scale against the nearest orthogonal matrix of its momentum, and shrinks
    by lr · decay. Torch's class takes one matrix at a time, in bfloat16 only, and cannot be held
    back; here equal shapes are stacked into fewer, bigger calls.
    """

    def __init__(self, group: Group, settings: OptimSection, sharding: Sharding | None) -> None:
        super().__init__(group, settings, sharding)
        self._step = torch.zeros((), device=self.device)
        self.early = None if sharding is None else EarlyExchange(sharding)
        self._stacks = list(_stacks(group, sharding, self.offloaded, self.early))

    def wanted(self, settings: OptimSection, lr: float) -> dict[str, float]:
        """Rate, decay and `optim.muon`; switches as 1 or 0."""
        muon = settings.muon
        auto = muon.newton_schulz == "auto"
        bf16 = bf16_is_fast(self.device) if auto else muon.newton_schulz == "bf16"
        return super().wanted(settings, lr) | {
            "cautious_decay": float(settings.cautious_decay),
            "momentum": muon.momentum,
            "momentum_warmup_steps": float(muon.momentum_warmup_steps),
            "nesterov": float(muon.nesterov),
            "newton_schulz_steps": float(muon.newton_schulz_steps),
            "newton_schulz_bf16": float(bf16),
            "polar_express": float(muon.coefficients == "polar-express"),
            "rms_scale": float(muon.scale == "rms"),
            "separate_parts": float(muon.separate_parts),
        }

    def update(self, gate: Gate) -> None:
        """See `Rule.update`; but a matrix without a gradient counts as one with a zero gradient."""
        if self.early is not None:
            self.early.finish()
        momentum = self._momentum()
        shrinking = shrink_by(gate, self.numbers["lr"] * self.numbers["weight_decay"])
        overlap(self._update(stack, gate, momentum, shrinking) for stack in self._stacks)
        self._step.add_(1.0 - gate.found_inf)

    def _update(
        self, stack: _Stack, gate: Gate, momentum: float | Tensor, shrinking: Tensor
    ) -> Task:
        """A stack. One that does not travel drops its copies before the next one makes its own."""
        with lent([stack.momentum_NRC], self.device, self.offloaded) as (momentum_NRC,):
            gradient_NRC = torch.stack([_gradient(weight) for weight in stack.parameters]).float()
            ahead_NRC = self._ahead(gradient_NRC, momentum_NRC, gate, momentum)
        del gradient_NRC
        if self.early is not None and stack.early is not None and stack.early.begun:
            # Of this rank's parts only the momentum counts: they have travelled already.
            del ahead_NRC
            ahead_MRC = self._ahead(*self.early.arrived(stack.early), gate, momentum)
            steps = self._steps_back(stack, ahead_MRC)
            del ahead_MRC
        else:
            steps = self._steps_of(stack, ahead_NRC)
            del ahead_NRC
        step_NRC = yield from steps
        hush([step_NRC], gate)
        with self.widened(stack.parameters, gate) as weights:
            if self.numbers["weight_decay"] and self.numbers["cautious_decay"]:
                _decay_where_agreed(weights, step_NRC, shrinking)
            elif self.numbers["weight_decay"]:
                torch._foreach_mul_(weights, shrinking)
            torch._foreach_add_(weights, list(step_NRC.unbind()))

    def _momentum(self) -> float | Tensor:
        """Of this step: a pure function of the updates made, on the device."""
        last, over = self.numbers["momentum"], self.numbers["momentum_warmup_steps"]
        first = min(_FIRST_MOMENTUM, last)
        if not over or first == last:
            return last
        return first + (last - first) * (self._step / over).clamp_max(1.0)

    def _ahead(
        self, gradient_NRC: Tensor, momentum_NRC: Tensor, gate: Gate, momentum: float | Tensor
    ) -> Tensor:
        """What is made orthogonal; the momentum is updated, and the gradient scaled."""
        if gate.divisor is not None:
            gradient_NRC.div_(gate.divisor)
        hush([gradient_NRC], gate)
        momentum_NRC.mul_(torch.where(gate.masked, 1.0, momentum))
        momentum_NRC.add_(gradient_NRC * (1.0 - momentum))
        if not self.numbers["nesterov"]:
            return momentum_NRC
        return torch.lerp(gradient_NRC, momentum_NRC, momentum)

    def _steps_of(self, stack: _Stack, ahead_NRC: Tensor) -> Travel:
        """What is added to the weights."""
        if stack.dealing is None:
            return self._steps_of_parts(ahead_NRC, self._parts(stack))
        steps = stack.dealing(ahead_NRC, partial(self._steps_of_parts, parts=self._parts(stack)))
        del ahead_NRC  # while parts travel
        return (yield from steps)

    def _steps_back(self, stack: _Stack, ahead_MRC: Tensor) -> Travel:
        """The same, of the whole matrices that this rank is dealt."""
        assert stack.dealing is not None
        if len(ahead_MRC):
            ahead_MRC = self._steps_of_parts(ahead_MRC, self._parts(stack))
        back = stack.dealing.back(ahead_MRC)
        del ahead_MRC
        return (yield from back)

    def _parts(self, stack: _Stack) -> tuple[int, ...]:
        return stack.parts if self.numbers["separate_parts"] else (sum(stack.parts),)

    def _steps_of_parts(self, stack_NRC: Tensor, parts: tuple[int, ...]) -> Tensor:
        """A step for each part of each matrix; parts of one shape are one stack."""
        if len(set(parts)) == 1:
            matrices = stack_NRC.reshape(-1, parts[0], stack_NRC.size(2))
            return self._scaled(matrices).reshape(stack_NRC.shape)
        return torch.cat([self._scaled(part) for part in stack_NRC.split(parts, dim=1)], dim=1)

    def _scaled(self, stack_NRC: Tensor) -> Tensor:
        """-lr · scale · the orthogonal matrix."""
        dtype = torch.bfloat16 if self.numbers["newton_schulz_bf16"] else torch.float32
        steps, polar = int(self.numbers["newton_schulz_steps"]), bool(self.numbers["polar_express"])
        orthogonal_NRC = newton_schulz(stack_NRC, steps, dtype, polar)
        rows, columns = stack_NRC.shape[1:]
        scale = math.sqrt(max(1.0, rows / columns))
        if self.numbers["rms_scale"]:
            scale = 0.2 * math.sqrt(max(rows, columns))
        return orthogonal_NRC.mul_(-self.numbers["lr"] * scale)

    def tensors(self) -> dict[str, Tensor]:
        """Momentum of each matrix, `<weight>.momentum`, and the count of updates."""
        state = {f"{self.group.role}.step": self._step}
        for stack in self._stacks:
            owned = zip(stack.names, stack.parameters, stack.momentum_NRC, strict=True)
            for name, weight, momentum_RC in owned:
                state[f"{name}.momentum"] = cut_alike(weight, momentum_RC)
        return state


def _stacks(
    group: Group, sharding: Sharding | None, offloaded: bool, early: EarlyExchange | None
) -> Iterator[_Stack]:
    alike: dict[tuple[object, ...], list[int]] = {}
    summed_late = frozenset() if sharding is None else sharding.summed_late
    for number, weight in enumerate(group.parameters):
        name = group.names[number]
        # Equal shapes may be cut in different ways, or summed at different times.
        held = None if sharding is None else sharding.pieces[name].by_holder
        key = (weight.shape, weight.dtype, group.parts[number], held, name in summed_late)
        alike.setdefault(key, []).append(number)
    dealt = sent = 0
    for numbers in alike.values():
        first = group.parameters[numbers[0]]
        pieces = None if sharding is None else sharding.pieces[group.names[numbers[0]]]
        whole = first.numel() if pieces is None else math.prod(pieces.shape)
        # What is dealt out is stacked at each rank.
        ranks = 1 if sharding is None else sharding.size
        most = max(1, _MOST_IN_STACK // whole) * ranks
        for begin in range(0, len(numbers), most):
            taken = numbers[begin : begin + most]
            parameters = tuple(group.parameters[number] for number in taken)
            shape = len(taken), *own_part(first).shape
            momentum_NRC = (
                host_zeros(shape, torch.float32, first.device)
                if offloaded
                else torch.zeros(shape, device=first.device)
            )
            dealing = stacked = None
            if sharding is not None and pieces is not None:
                dealing = Dealing(sharding, pieces, len(taken), dealt)
                of_rank = 2 * whole * math.ceil(len(taken) / ranks)
                if (
                    early is not None
                    and dealing.travels
                    and group.names[numbers[0]] not in summed_late
                    and not offloaded
                    and sent + of_rank <= _MOST_EARLY
                ):
                    sent += of_rank
                    stacked = early.add(parameters, momentum_NRC, dealing)
            yield _Stack(
                names=tuple(group.names[number] for number in taken),
                parameters=parameters,
                parts=group.parts[taken[0]],
                momentum_NRC=momentum_NRC,
                dealing=dealing,
                early=stacked,
            )
            dealt += len(taken)


def _decay_where_agreed(weights: list[Tensor], step_NRC: Tensor, shrinking: Tensor) -> None:
    if queues(step_NRC.device):  # few kernels for all; a CPU takes twice as long for the copies
        factor_NRC = shrinking_where_agreed(torch.stack(weights), step_NRC, shrinking)
        torch._foreach_mul_(weights, list(factor_NRC))
        return
    for weight, step in zip(weights, step_NRC, strict=True):
        weight.mul_(shrinking_where_agreed(weight, step, shrinking))


def _gradient(weight: nn.Parameter) -> Tensor:
    if weight.grad is None:
        return torch.zeros_like(own_part(weight))
    return own_part(weight.grad)
