"""A training step that goes wrong as a drill wants it to.

Enters: longhaul's own step, and faults. Leaves: the same step, disturbed from within its batch,
gradients, weights or optimizer. Never knows: records, findings, decisions.

Shape suffixes: B sequences, T tokens.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import longhaul.run.diagnose.replays
import longhaul.run.train.build
from longhaul.core.records import Finding, Record
from longhaul.core.schedules import derive_key
from longhaul.data.batches import Batch
from longhaul.diagnose.diagnosis import Diagnosis
from longhaul.logbook.folder import RunFolder
from longhaul.model.block import Block
from longhaul.model.gpt import GPT
from longhaul.optim.gate import Gate
from longhaul.optim.optimizer import Rule, RuledOptimizer
from longhaul.run.drill.machine_faults import Hands, register
from longhaul.run.drill.machine_seams import let_in
from longhaul.supervise.faults.numbers import FOREVER, Fault, read_disturbance
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

_MOST_OF_FP16 = 65504.0
_SMALLEST_OUTLIER = 2.0**-7
"""Gradient element at which an `overflow` begins; the loss scale begins at 2^16."""


class DisturbedStep(TrainingStep):
    """A step with faults.

    Args:
        faults: what befalls it.
        given: of `TrainingStep`.
        named: of `TrainingStep`.
    """

    def __init__(self, faults: Sequence[Fault], *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.live = False
        """The trainer makes the step; a replay otherwise."""
        self._faults = tuple(faults)
        self._acting: tuple[Fault, ...] = ()
        self._made = 0
        self._made_at: dict[int, int] = {}
        """First block that a step of the trainer read → the how manyth it was."""
        kinds = {fault.kind for fault in faults}
        for group in self.optimizer.groups:
            for parameter in group.parameters:
                parameter.register_hook(partial(self._gradient, group.role))
        if isinstance(self.optimizer, RuledOptimizer):
            for rule in self.optimizer.rules:
                if "frozen-position" in kinds and rule.group.role == "position":
                    self._hold(rule)
        if "double-gradient" in kinds:
            for block in _blocks(self.model):
                for module in (block.attention, block.mlp):
                    module.register_forward_hook(self._doubled)
        for fault in faults:
            if fault.kind == "slow-evaluation":
                self.model.register_forward_pre_hook(partial(_slow_evaluation, fault.strength))

    def __call__(
        self,
        batch: Batch,
        micro_sequences: int,
        learning_rate: float,
        read_gauges: bool,
        window: int | None = None,
    ) -> Tensor:
        """Make the step, with whatever is wrong with it."""
        if self.live:
            self._made += 1
            self._made_at[batch.draw] = self._made
        acting = [f for f in self._faults if self._acts(f, batch, learning_rate)]
        self._acting = tuple(acting)
        for fault in acting:
            self._before(fault, batch.draw)
            batch = _spoiled(batch, fault)
        figures = super().__call__(batch, micro_sequences, learning_rate, read_gauges, window)
        for fault in acting:
            if fault.kind == "attention-logits":
                self._grow_attention(1 + fault.strength)
        return figures

    def apply_settings(self, settings: Any, learning_rate: float) -> None:
        """Take changed settings, unless old ones come back (OPT-175B, 12.35 to 12.40)."""
        rules = self.optimizer.rules if isinstance(self.optimizer, RuledOptimizer) else []
        before = [dict(rule.numbers) for rule in rules]
        super().apply_settings(settings, learning_rate)
        if self._made and any(fault.kind == "old-betas" for fault in self._faults):
            for rule, numbers in zip(rules, before, strict=True):
                rule.numbers |= {n: v for n, v in numbers.items() if n.startswith("beta")}

    def _loss(self, *given: Any, **named: Any) -> Tensor:
        loss = super()._loss(*given, **named)
        return loss * math.nan if self._has("nan-loss") else loss

    def _has(self, kind: str) -> bool:
        return any(fault.kind == kind for fault in self._acting)

    def _acts(self, fault: Fault, batch: Batch, learning_rate: float) -> bool:
        if learning_rate <= fault.above_lr:
            return False
        if fault.draws is not None:
            begin, end = fault.draws
            if batch.next_draw <= begin or batch.draw >= end:
                return False
        if fault.made is None:
            return True
        first, last = fault.made
        if self.live:
            return first <= self._made < last and _in_turn(fault, self._made)
        if last < FOREVER:
            return False  # it was there once, and a replay does not bring it back
        # What is there for good comes again where it was, and on data that was never read too.
        made = self._made_at.get(batch.draw)
        return made is None or (first <= made and _in_turn(fault, made))

    def _before(self, fault: Fault, draw: int) -> None:
        if fault.kind == "slow-step":
            time.sleep(fault.strength)
        elif fault.kind == "jolt":
            self._jolt(fault.strength, draw)

    @torch.no_grad()
    def _jolt(self, strength: float, draw: int) -> None:
        self.before_change()
        noise = torch.Generator().manual_seed(derive_key(draw, "jolt"))
        for parameter in self.model.parameters():
            if parameter.ndim == 2:
                by = torch.randn(parameter.shape, generator=noise)
                parameter.add_(strength * parameter.std() * by)

    @torch.no_grad()
    def _grow_attention(self, factor: float) -> None:
        for block in _blocks(self.model):
            attention = block.attention
            rows = (attention.heads + attention.key_heads) * attention.head_width
            attention.qkv.weight[:rows] *= factor

    def _hold(self, rule: Rule) -> None:
        update = rule.update

        def held(gate: Gate) -> None:
            if not self._has("frozen-position"):
                update(gate)

        rule.update = held  # type: ignore[method-assign]

    def _gradient(self, role: str, gradient: Tensor) -> Tensor:
        for fault in self._acting:
            if fault.kind == "gradient-spike":
                gradient = gradient * fault.strength
            elif fault.kind == "frozen-position" and role == "position":
                gradient = torch.zeros_like(gradient)
            elif fault.kind == "overflow" and role == "matrix" and self._overflows(fault):
                gradient = gradient.clone()
                gradient.view(-1)[0] = math.inf
        return gradient

    def _doubled(self, module: torch.nn.Module, given: Any, out: Tensor) -> None:
        if out.requires_grad and self._precision.compute != "float32":
            out.register_hook(lambda gradient: 2.0 * gradient)

    def _overflows(self, fault: Fault) -> bool:
        began = fault.made[0] if fault.made else 1
        outlier: float = _SMALLEST_OUTLIER * 2.0 ** ((self._made - began) / fault.strength)
        scale = float(self.loss_scale.scale) if self.loss_scale is not None else 1.0
        return bool(outlier * scale > _MOST_OF_FP16)


def _blocks(model: GPT) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]


def _in_turn(fault: Fault, made: int) -> bool:
    return fault.made is None or (made - fault.made[0]) % fault.every < fault.lasting


def _spoiled(batch: Batch, fault: Fault) -> Batch:
    """The batch with its text spoiled, the same for the same blocks of data."""
    window_BT = torch.cat((batch.tokens_BT, batch.targets_BT[:, -1:]), dim=1)
    noise = torch.Generator().manual_seed(derive_key(batch.draw, "spoiled"))
    if fault.kind == "noise-tokens":
        window_BT = torch.randint(256, window_BT.shape, generator=noise)
    elif fault.kind == "shuffled-tokens":
        order = torch.randperm(window_BT.numel(), generator=noise)
        window_BT = window_BT.reshape(-1)[order].view_as(window_BT)
    else:
        return batch
    return replace(batch, tokens_BT=window_BT[:, :-1], targets_BT=window_BT[:, 1:])


def _slow_evaluation(seconds: float, module: torch.nn.Module, given: Any) -> None:
    if not module.training:
        time.sleep(seconds)


def _sees_nothing(self: Diagnosis, record: Record) -> tuple[Finding, ...]:
    return ()


def disturb(folder: RunFolder) -> None:
    """Put the faults that were left for this run into this process, for training and replays."""
    disturbance = read_disturbance(folder)
    if disturbance.faults:
        step = partial(DisturbedStep, disturbance.faults)
        _put(longhaul.run.train.build, "TrainingStep", step)
        _put(longhaul.run.diagnose.replays, "TrainingStep", step)
        _put(Trainer, "_step", _live(Trainer._step))
    if disturbance.blind:
        _put(Diagnosis, "observe", _sees_nothing)
    hands = Hands(folder, os.environ)
    register(hands)
    let_in(hands)


def _live(make: Callable[[Trainer], None]) -> Callable[[Trainer], None]:
    """Steps that the trainer makes are told from replays."""

    def made(trainer: Trainer) -> None:
        step = trainer.training_step
        assert isinstance(step, DisturbedStep)
        step.live = True
        try:
            make(trainer)
        finally:
            step.live = False

    return made


def _put(where: Any, name: str, what: Any) -> None:
    setattr(where, name, what)
