"""The optimizer, made of an update rule for each role of weights.

Torch's `Optimizer` class is left out on purpose: it imports the compiler at its first use, more
than a second of every start, and its wrappers cost half a millisecond a step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from longhaul.config.optim import OptimSection
from longhaul.core.errors import NeedsPerson, RecipeError
from longhaul.core.pieces import Pieces
from longhaul.optim.early import EarlyExchange
from longhaul.optim.gate import Gate, judge
from longhaul.optim.groups import Group, learning_rate, make_groups, weight_decay
from longhaul.optim.sharding import Sharding, cut_alike, own_part
from longhaul.optim.state import in_float32, lost_bits, wait_for_borrowed

LiveSettings = dict[str, float | str]
"""Dotted `role.setting` → value, such as `matrix.weight_decay`; also `clip`, `optimizer.name`."""


# Devices whose fused kernels obey `found_inf` and `grad_scale`: one pass over the memory clips,
# updates and masks, about four times as fast on a CPU as a loop over tensors after a clipping
# pass. On other devices that loop runs inside the gate's guard.
FUSED_DEVICES = ("cpu", "cuda", "xpu")


class Rule(ABC):
    """How the weights of one role are updated. State is allocated before the first step, so that a
    checkpoint can be copied in and memory is known.
    """

    def __init__(self, group: Group, settings: OptimSection, sharding: Sharding | None) -> None:
        self.group = group
        self.sharding = sharding
        self.offloaded = settings.offload
        """Its state lives on the host."""
        self.device = group.parameters[0].device
        self.fused = self.device.type in FUSED_DEVICES
        self.rounding = settings.rounding
        compensates = settings.rounding == "compensated"
        self.lost = {w: lost_bits(w) for w in group.parameters} if compensates else {}
        """What roundings left over of each half weight."""
        self.early: EarlyExchange | None = None
        """What it sends between ranks while a backward pass goes on."""
        self.numbers: dict[str, float] = {}
        """The settings that `update` reads, and reads nowhere else."""

    def wanted(self, settings: OptimSection, lr: float) -> dict[str, float]:
        """What `numbers` must be under `settings` at the optimizer's learning rate `lr`."""
        role = self.group.role
        return {
            "lr": learning_rate(role, settings, lr),
            "weight_decay": weight_decay(role, settings),
        }

    def widened(
        self, weights: Sequence[nn.Parameter], gate: Gate
    ) -> AbstractContextManager[list[Tensor]]:
        """Own parts of weights of this role, to update in place; see `state.in_float32`."""
        lost = [self.lost[weight] for weight in weights] if self.lost else ()
        return in_float32(weights, self.rounding, lost, gate.masked)

    def lost_tensors(self) -> dict[str, Tensor]:
        """What roundings left over, by name, `<weight>.lost`."""
        named = zip(self.group.names, self.lost.items(), strict=False)
        return {
            f"{name}.lost": cut_alike(weight, left)
            for name, (weight, left) in named
            if left is not None
        }

    @abstractmethod
    def update(self, gate: Gate) -> None:
        """One update of weights and state, or no byte of them if masked or without a gradient."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All state by name."""


class PortionsRule(Rule):
    """A rule that takes its weights a portion at a time, so that it borrows little memory."""

    portions: Sequence[range]
    """Positions of weights in the group that are updated at once."""

    def update(self, gate: Gate) -> None:
        """See `Rule.update`."""
        parameters = self.group.parameters
        for portion in self.portions:
            if given := [n for n in portion if parameters[n].grad is not None]:
                self.update_portion(given, gate)

    @abstractmethod
    def update_portion(self, given: list[int], gate: Gate) -> None:
        """Update the weights at these positions, all of which have a gradient. Copies are let go of
        before it returns: the next portion makes its own.
        """

    def update_by_torch(
        self,
        call: Callable[..., object],
        gradients: list[Tensor],
        changed: list[Tensor],
        gate: Gate,
    ) -> None:
        """Let torch's function update weights and state, the tensors that it has `changed`."""
        if self.fused:
            # The kernel divides by one and returns early on the other; its step counters are
            # raised before and lowered again after it, exactly, in float32.
            call(fused=True, grad_scale=gate.divisor, found_inf=gate.found_inf)
            return
        divide(gradients, gate.divisor)
        with gate.guard(changed):
            call(fused=False, grad_scale=None, found_inf=None)


class Optimizer:
    """Owns the state of a model's update, with a rule for each role of weights. A step: gradients
    computed, `gate = optimizer.judge(loss)`, `optimizer.step(gate)`, `optimizer.clear_gradients()`.
    """

    def __init__(
        self,
        model: nn.Module,
        settings: OptimSection,
        rule_for: Callable[[Group, OptimSection, Sharding | None], Rule],
        sharding: Sharding | None = None,
    ) -> None:
        self.name = settings.name
        self.sharding = sharding
        self.draws = settings.rounding == "stochastic"
        """It draws random numbers, from the generator of the weights' device."""
        if self.draws and sharding is not None:
            raise RecipeError(
                "optim.rounding: stochastic, but many processes would draw other numbers than one",
                'take "compensated", or train with one process',
            )
        self.groups = make_groups(model, sharding.pieces if sharding is not None else None)
        self.rules = [rule_for(group, settings, sharding) for group in self.groups]
        self._parameters = [p for group in self.groups for p in group.parameters]
        self._names = [name for group in self.groups for name in group.names]
        self.apply_settings(settings)

    def before_backward(self, is_last: bool) -> None:
        """Told before a backward pass of an update: whether its gradients are the last to be added.
        What travels between ranks may then set out as soon as each of them is there.
        """
        for rule in self.rules:
            if rule.early is not None:
                rule.early.open = is_last

    def judge(self, loss: Tensor, scale: Tensor | None = None) -> Gate:
        """Measure all gradients; see `gate.judge`."""
        if self.sharding is None:
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            return judge(gradients, loss, self._clip, scale)
        named = zip(self._names, self._parameters, strict=True)
        given = [(name, own_part(p.grad)) for name, p in named if p.grad is not None]
        names, parts = zip(*given, strict=True)
        return judge(parts, loss, self._clip, scale, self.sharding, names)

    @torch.no_grad()
    def step(self, gate: Gate) -> None:
        """One update, or nothing at all if the gate is masked."""
        for rule in self.rules:
            rule.update(gate)

    def clear_gradients(self) -> None:
        """Forget the gradients; the next backward pass keeps its own tensors instead of adding."""
        for parameter in self._parameters:
            parameter.grad = None
        for rule in self.rules:
            if rule.early is not None:
                rule.early.discard()

    def set_learning_rate(self, lr: float) -> None:
        """The rate of the next step; each role takes its factor of it."""
        for rule in self.rules:
            rule.numbers["lr"] = learning_rate(rule.group.role, self._settings, lr)

    def apply_settings(self, settings: OptimSection) -> None:
        """Take changed settings and keep all state."""
        self._settings = settings
        self._clip = settings.clip
        for rule in self.rules:
            rule.numbers = rule.wanted(settings, settings.lr)

    @torch.no_grad()
    def reset(self) -> None:
        """Throw all state away; every rule here begins with zeros."""
        for tensor in self.tensors().values():
            tensor.zero_()

    def live_settings(self) -> LiveSettings:
        """Settings as the next step will read them."""
        return self._by_role(self.name, self._clip, lambda rule: rule.numbers)

    def expected_settings(self, settings: OptimSection, lr: float) -> LiveSettings:
        """What `live_settings` must say under `settings` at learning rate `lr`."""
        return self._by_role(settings.name, settings.clip, lambda rule: rule.wanted(settings, lr))

    def _by_role(
        self, name: str, clip: float, numbers_of: Callable[[Rule], Mapping[str, float]]
    ) -> LiveSettings:
        settings: LiveSettings = {"optimizer.name": name, "clip": clip}
        for rule in self.rules:
            settings |= {f"{rule.group.role}.{key}": n for key, n in numbers_of(rule).items()}
        return settings

    def tensors(self) -> dict[str, Tensor]:
        """State of all rules by name, `<weight>.<what>`, or `<role>.<what>` if it is the role's. Of
        an offloaded one the host waits until it is all back.
        """
        for rule in self.rules:
            if rule.offloaded:
                wait_for_borrowed(rule.device)
        return {
            name: state
            for rule in self.rules
            for name, state in (rule.tensors() | rule.lost_tensors()).items()
        }

    def pieces(self) -> Mapping[str, Pieces]:
        """Which pieces of each tensor of state lie here, where they are cut."""
        return {} if self.sharding is None else self.sharding.pieces_of(self.tensors())

    def facts(self) -> Mapping[str, Any]:
        """Which update rule the tensors belong to."""
        return {"name": self.name}

    def take_back(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go on from restored state; a `NeedsPerson` if it is another update rule's."""
        if facts["name"] != self.name:
            raise NeedsPerson(
                f"the checkpoint holds the state of optimizer {facts['name']}, not of {self.name}",
                "set optim.name back, or start another run with --new",
            )


def divide(gradients: list[Tensor], divisor: Tensor | None) -> None:
    """Undo the loss scale and clip, in place: what a fused kernel does on the way."""
    if divisor is not None:
        torch._foreach_div_(gradients, divisor)


def shrink_by(gate: Gate, share: float) -> Tensor:
    """Factor that shrinks weights by `share`: a float32 scalar, exactly 1 if masked."""
    return torch.where(gate.masked, 1.0, 1.0 - share)


def shrinking_where_agreed(weight: Tensor, step: Tensor, shrinking: Tensor) -> Tensor:
    """What to multiply by: `shrinking` where `step`, of any length, does not lead away from zero,
    elsewhere 1: cautious weight decay (arXiv 2510.12402, algorithm 1).
    """
    return torch.where(weight * step <= 0, shrinking, 1.0)


def hush(tensors: list[Tensor], gate: Gate) -> None:
    """Fill what is about to be added with -0 if masked.

    Adding -0 changes no byte of any number; +0 would turn -0 into +0. With factors that are exactly
    1 this holds an update back without a copy, in a quarter of the time of `Gate.guard` on a CPU.
    """
    for tensor in tensors:
        tensor.masked_fill_(gate.masked, -0.0)
