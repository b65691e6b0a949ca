"""Faults in a run's numbers: its batches, gradients, weights, optimizer or detectors go wrong.

Shape suffixes: B sequences, T tokens.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from pydantic import TypeAdapter
from torch import Tensor

from drills.runs import FOREVER, NumberFault
from longhaul.config.optim import OptimSection
from longhaul.core.faults import Point, register
from longhaul.core.schedules import derive_key
from longhaul.data.batches import Batch
from longhaul.logbook.folder import RunFolder
from longhaul.model.block import Block
from longhaul.model.gpt import GPT
from longhaul.optim.gate import Gate
from longhaul.optim.optimizer import Rule
from longhaul.run.drill.laid import laid_path
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Trainer

NUMBER_KINDS = {
    "nan-loss": "the loss of a micro-batch is not a number",
    "noise-tokens": "text drawn evenly from all bytes",
    "shuffled-tokens": "the positions of a batch mixed up, as a wrong loader does",
    "gradient-spike": "all gradients times STRENGTH",
    "attention-logits": "query and key weights grow by the share STRENGTH at each step",
    "overflow": "one element of the gradient doubles every STRENGTH steps, beyond what fp16 holds",
    "jolt": "every matrix moves by STRENGTH times its own standard deviation, at random",
    "frozen-position": "no gradient reaches the position table, and it is not updated",
    "double-gradient": "the gradient that flows into attention and MLPs is counted twice in "
    "the form that trains, as where it is summed over two shards that hold all of it; plain "
    "float32 computes it right",
    "old-betas": "a change of the optimizer's settings leaves its betas as they were "
    "(OPT-175B, 12.35 to 12.40)",
    "slow-step": "each step takes STRENGTH seconds longer",
    "slow-evaluation": "each batch of an evaluation takes STRENGTH seconds longer",
    "blind": "the detectors find nothing: a drill must notice",
}
"""What each does, with the `strength` of its fault."""
_MOST_OF_FP16 = 65504.0
_SMALLEST_OUTLIER = 2.0**-7
"""Gradient element at which an `overflow` begins; the loss scale begins at 2^16."""


def inject(folder: RunFolder) -> None:
    """Let the faults in numbers that were laid for a run act in this process."""
    laid = TypeAdapter(list[NumberFault]).validate_json(laid_path(folder).read_bytes())
    faults = tuple(fault for fault in laid if fault.kind in NUMBER_KINDS)
    if any(fault.kind == "blind" for fault in faults):
        register(Point.FINDINGS, lambda findings: ())
    if faults:
        handlers = _Handlers(faults)
        register(Point.BEFORE_STEP, handlers.before_step)
        register(Point.BATCH, handlers.batch)
        register(Point.LOSS, handlers.loss)
        register(Point.UPDATED, handlers.updated)
        register(Point.OPTIMIZER_SETTINGS, handlers.settings)


class _Handlers:
    """What happens at each point, to the trainer's step and to those of replays."""

    def __init__(self, faults: Sequence[NumberFault]) -> None:
        self._faults = faults
        self._live: TrainingStep | None = None
        """The trainer is about to make a step with it."""
        self._disturbed: WeakKeyDictionary[TrainingStep, _Disturbed] = WeakKeyDictionary()
        self._settings: WeakKeyDictionary[TrainingStep, OptimSection] = WeakKeyDictionary()

    def before_step(self, trainer: Trainer, step: int) -> None:
        self._live = trainer.training_step

    def batch(self, batch: Batch, step: TrainingStep, learning_rate: float) -> Batch:
        if step not in self._disturbed:
            self._disturbed[step] = _Disturbed(self._faults, step)
        live, self._live = self._live is step, None
        return self._disturbed[step].begin(step, batch, learning_rate, live)

    def loss(self, loss: Tensor, step: TrainingStep, sequences: int) -> Tensor:
        disturbed = self._disturbed.get(step)
        return loss * math.nan if disturbed is not None and disturbed.has("nan-loss") else loss

    def updated(self, step: TrainingStep) -> None:
        self._disturbed[step].end(step)

    def settings(self, settings: OptimSection, step: TrainingStep) -> OptimSection:
        before, disturbed = self._settings.get(step), self._disturbed.get(step)
        stale = any(fault.kind == "old-betas" for fault in self._faults)
        if stale and before is not None and disturbed is not None and disturbed.made:
            betas = {"beta1": before.beta1, "beta2": before.beta2}
            settings = settings.model_copy(update=betas)
        self._settings[step] = settings
        return settings


class _Disturbed:
    """What befalls one training step."""

    def __init__(self, faults: Sequence[NumberFault], step: TrainingStep) -> None:
        self._faults = tuple(faults)
        self._acting: tuple[NumberFault, ...] = ()
        self._loss_scale = step.loss_scale
        self.made = 0
        """Steps that the trainer made with it."""
        self._made_at: dict[int, int] = {}
        """First block that a step of the trainer read → the how manyth it was."""
        kinds = {fault.kind for fault in faults}
        for group in step.optimizer.groups:
            for parameter in group.parameters:
                parameter.register_hook(partial(self._gradient, group.role))
        if "frozen-position" in kinds:
            for rule in step.optimizer.rules:
                if rule.group.role == "position":
                    self._hold(rule)
        if "double-gradient" in kinds:
            for block in _blocks(step.model):
                for module in (block.attention, block.mlp):
                    module.register_forward_hook(_doubled)
        for fault in faults:
            if fault.kind == "slow-evaluation":
                step.model.register_forward_pre_hook(partial(_slow_evaluation, fault.value))

    def begin(self, step: TrainingStep, batch: Batch, learning_rate: float, live: bool) -> Batch:
        """The batch, as spoiled as it is."""
        if live:
            self.made += 1
            self._made_at[batch.draw] = self.made
        acting = [f for f in self._faults if self._acts(f, batch, learning_rate, live)]
        self._acting = tuple(acting)
        for fault in acting:
            if fault.kind == "slow-step":
                time.sleep(fault.value)
            elif fault.kind == "jolt":
                _jolt(step, fault.value, batch.draw)
            batch = _spoiled(batch, fault)
        return batch

    def end(self, step: TrainingStep) -> None:
        """The step was made."""
        for fault in self._acting:
            if fault.kind == "attention-logits":
                _grow_attention(step.model, 1 + fault.value)

    def has(self, kind: str) -> bool:
        """A fault of this kind acts."""
        return any(fault.kind == kind for fault in self._acting)

    def _acts(self, fault: NumberFault, batch: Batch, learning_rate: float, live: bool) -> bool:
        if learning_rate <= fault.above_lr:
            return False
        if fault.draws is not None:
            begin, end = fault.draws
            if batch.next_draw <= begin or batch.draw >= end:
                return False
        if fault.made is None:
            return True
        first, last = fault.made
        if live:
            return first <= self.made < last and _in_turn(fault, self.made)
        if last < FOREVER:
            return False  # it was there once, and a replay does not bring it back
        # What is there for good comes again where it was, and on data that was never read too.
        made = self._made_at.get(batch.draw)
        return made is None or (first <= made and _in_turn(fault, made))

    def _hold(self, rule: Rule) -> None:
        update = rule.update

        def held(gate: Gate) -> None:
            if not self.has("frozen-position"):
                update(gate)

        rule.update = held  # type: ignore[method-assign]

    def _gradient(self, role: str, gradient: Tensor) -> Tensor:
        for fault in self._acting:
            if fault.kind == "gradient-spike":
                gradient = gradient * fault.value
            elif fault.kind == "frozen-position" and role == "position":
                gradient = torch.zeros_like(gradient)
            elif fault.kind == "overflow" and role == "matrix" and self._overflows(fault):
                gradient = gradient.clone()
                gradient.view(-1)[0] = math.inf
        return gradient

    def _overflows(self, fault: NumberFault) -> bool:
        began = fault.made[0] if fault.made else 1
        outlier: float = _SMALLEST_OUTLIER * 2.0 ** ((self.made - began) / fault.value)
        scale = float(self._loss_scale.scale) if self._loss_scale is not None else 1.0
        return bool(outlier * scale > _MOST_OF_FP16)


def _blocks(model: GPT) -> list[Block]:
    return [block for block in model.blocks if isinstance(block, Block)]


def _in_turn(fault: NumberFault, made: int) -> bool:
    return fault.made is None or (made - fault.made[0]) % fault.every < fault.lasting


@torch.no_grad()
def _jolt(step: TrainingStep, strength: float, draw: int) -> None:
    step.before_change()
    noise = torch.Generator().manual_seed(derive_key(draw, "jolt"))
    for parameter in step.model.parameters():
        if parameter.ndim == 2:
            by = torch.randn(parameter.shape, generator=noise)
            parameter.add_(strength * parameter.std() * by)


@torch.no_grad()
def _grow_attention(model: GPT, factor: float) -> None:
    for block in _blocks(model):
        attention = block.attention
        rows = (attention.heads + attention.key_heads) * attention.head_width
        attention.qkv.weight[:rows] *= factor


def _doubled(module: torch.nn.Module, given: Any, out: Tensor) -> None:
    if out.requires_grad and torch.is_autocast_enabled(out.device.type):
        out.register_hook(lambda gradient: 2.0 * gradient)


def _spoiled(batch: Batch, fault: NumberFault) -> Batch:
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
