"""What is done to tensors: a training step that goes wrong when it is told to.

Enters: longhaul's own step, and a run's faults. Leaves: the same step, disturbed from within its
model, gradients, weights or batch. Never knows: records, or what the disturbance leads to.

Shape suffixes: B sequences, T tokens, D width, V vocabulary.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from benchmarks.divergence_lab.runs import Fault, Run
from torch import Tensor

from longhaul.core.schedules import derive_key
from longhaul.core.units import Seconds
from longhaul.data.batches import Batch
from longhaul.model.gpt import GPT
from longhaul.train.step import TrainingStep

_STEP_S = 0.5
_JITTER = 0.06
_COLD_STEPS = 3
_COLD_FACTOR = 25.0
_BACKSLASH = 92
_LEAKING_SOURCE = 1
TEXT_FAULTS = (
    "noise-tokens", "repeated-token", "shuffled-tokens", "escape-leak", "other-script",
    "odd-batches", "repeated-phrase",
)  # fmt: skip
_PHRASE_TOKENS = 2
_SCRIPT = 7
"""Seed of the letters that stand for others, the same in all runs: text that can be learned."""
_NOW_AND_THEN = ("gradient-spikes", "gradient-noise", "odd-batches")
"""Kinds that touch one step in eight, by chance, of those that the fault lasts."""
_RAMP_STEPS = 90
"""Steps over which escape characters come to their full share."""


class LabClock:
    """Seconds that steps, evaluations and saves are said to take."""

    def __init__(self) -> None:
        self._now = 1_000_000.0

    def wall(self) -> Seconds:
        return self._now

    def monotonic(self) -> Seconds:
        return self._now

    def advance(self, seconds: Seconds) -> None:
        self._now += seconds


class DisturbedStep(TrainingStep):
    """A step with faults.

    Args:
        run: what to do.
        clock: told how long each step took.
    """

    def __init__(self, run: Run, clock: LabClock, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._run, self._clock = run, clock
        self._noise = torch.Generator().manual_seed(derive_key(run.seed, "fault"))
        self._made = 0
        self._hidden_D: Tensor | None = None
        if run.half_shift is not None:
            round_activations(self.model, run.half_shift)
        if run.logits_in_bf16:
            self._round_logits()
        for fault in (run.fault, run.spike):
            if fault is not None and fault.kind in _GRADIENT_FAULTS:
                self._watch_gradients(fault)

    @property
    def number(self) -> int:
        """The step being made, from 1."""
        return self._made + 1

    def __call__(self, batch: Batch, *given: Any, **named: Any) -> Tensor:
        """Make the step, with whatever is wrong with it."""
        fault = self._run.fault
        acts = fault is not None and self._acts(fault)
        if fault is not None and acts:
            batch = self._disturbed(batch, fault)
            if fault.kind == "corrupted-weight":
                self._corrupt(int(fault.strength))
        figures = super().__call__(batch, *given, **named)
        if fault is not None and acts:
            self._after(fault)
        self._clock.advance(self._duration())
        self._made += 1
        return figures

    def _acts(self, fault: Fault) -> bool:
        return in_turn(fault, self.number)

    def _duration(self) -> float:
        jitter = math.exp(_JITTER * float(torch.randn((), generator=self._noise)))
        cold = "H6" in self._run.harmless and self.number <= _COLD_STEPS
        return _STEP_S * jitter * (_COLD_FACTOR / self.number if cold else 1.0)

    def _disturbed(self, batch: Batch, fault: Fault) -> Batch:
        """The batch with its text spoiled."""
        window_BT = torch.cat((batch.tokens_BT, batch.targets_BT[:, -1:]), dim=1)
        chosen_B1 = torch.rand(len(window_BT), 1, generator=self._noise) < fault.strength
        match fault.kind:
            case "noise-tokens":
                spoiled_BT = torch.randint(256, window_BT.shape, generator=self._noise)
            case "repeated-token" | "odd-batches":
                row_B1 = torch.randint(256, (len(window_BT), 1), generator=self._noise)
                spoiled_BT = row_B1.expand_as(window_BT)
            case "repeated-phrase":
                times = -(-window_BT.size(1) // _PHRASE_TOKENS)
                spoiled_BT = window_BT[:, :_PHRASE_TOKENS].repeat(1, times)
                spoiled_BT = spoiled_BT[:, : window_BT.size(1)]
            case "shuffled-tokens":
                spoiled_BT = window_BT[:, torch.randperm(window_BT.size(1), generator=self._noise)]
            case "other-script":
                script_V = torch.arange(self.model.vocab_size)
                script_V[:256] = torch.randperm(
                    256, generator=torch.Generator().manual_seed(_SCRIPT)
                )
                spoiled_BT = script_V[window_BT]
            case "escape-leak":
                share = fault.strength * min(1.0, (self.number - fault.onset + 1) / _RAMP_STEPS)
                chosen_BT = torch.rand(window_BT.shape, generator=self._noise) < share
                # Runs of them, as repeated escaping leaves behind.
                chosen_BT[:, 1:] |= chosen_BT[:, :-1]
                if batch.source_B is not None:
                    chosen_BT &= (batch.source_B == _LEAKING_SOURCE)[:, None]
                chosen_B1, spoiled_BT = chosen_BT, torch.full_like(window_BT, _BACKSLASH)
            case _:
                return batch
        window_BT = torch.where(chosen_B1, spoiled_BT, window_BT)
        return replace(batch, tokens_BT=window_BT[:, :-1], targets_BT=window_BT[:, 1:])

    def _loss(self, *given: Any, **named: Any) -> Tensor:
        loss = super()._loss(*given, **named)
        fault = self._run.fault
        poisoned = fault is not None and fault.kind == "loss-nan" and self._acts(fault)
        return loss * math.nan if poisoned else loss

    @torch.no_grad()
    def _after(self, fault: Fault) -> None:
        blocks: Any = self.model.blocks
        match fault.kind:
            case "attention-logits":
                for block in blocks:
                    attention = block.attention
                    rows = (attention.heads + attention.key_heads) * attention.head_width
                    attention.qkv.weight[:rows] *= 1 + fault.strength
            case "mlp-out":
                for block in blocks:
                    block.mlp.down.weight *= 1 + fault.strength
            case "output-logits" if self._hidden_D is not None:
                # Along the mean of what the head reads: every logit moves by about as much.
                mean_D = self._hidden_D
                head = self.model.tokens if self.model.head is None else self.model.head
                head.weight += (fault.strength / mean_D.square().sum()) * mean_D

    @torch.no_grad()
    def _corrupt(self, flips: int) -> None:
        matrices = [p for n, p in self.model.named_parameters() if "blocks" in n and p.ndim == 2]
        pick = torch.randint(len(matrices), (), generator=self._noise)
        flat = matrices[int(pick)].view(-1)
        places = torch.randint(len(flat), (flips,), generator=self._noise)
        exponents = torch.randint(5, 12, (flips,), generator=self._noise).float()
        flat[places] = flat[places].sign() * torch.exp2(exponents).to(flat.dtype)

    def _watch_gradients(self, fault: Fault) -> None:
        roles = {p: group.role for group in self.optimizer.groups for p in group.parameters}
        for parameter, role in roles.items():
            if fault.kind.startswith("frozen-") and not fault.kind.endswith(role):
                continue
            parameter.register_hook(lambda g, fault=fault: self._gradient(g, fault))
        if fault.kind.startswith("frozen-"):
            # Nor does decay move what is left out of an optimizer.
            optimizer: Any = self.optimizer
            for rule in optimizer.rules:
                if fault.kind.endswith(rule.group.role):
                    self._hold(rule, fault)

    def _hold(self, rule: Any, fault: Fault) -> None:
        update = rule.update

        def held(gate: Any) -> None:
            if self.number < fault.onset:
                update(gate)

        rule.update = held

    def _gradient(self, gradient: Tensor, fault: Fault) -> Tensor:
        if not self._acts(fault):
            return gradient
        if fault.kind in ("gradient-spike", "gradient-spikes"):
            return gradient * fault.strength
        if fault.kind == "gradient-noise":
            noise = torch.randn(gradient.shape, generator=self._noise)
            return noise * (fault.strength * gradient.norm() / noise.norm())
        return torch.zeros_like(gradient)

    def _round_logits(self) -> None:
        original = self.model._logits

        def rounded(x_BTD: Tensor) -> Tensor:
            if self.model.final_norm is not None and self.model.training:
                with torch.no_grad():
                    mean_D = x_BTD.float().mean(dim=(0, 1))
                    before_D = self._hidden_D
                    self._hidden_D = mean_D if before_D is None else before_D.lerp(mean_D, 0.2)
            logits_BTV = original(x_BTD)
            return logits_BTV + (logits_BTV.bfloat16().float() - logits_BTV).detach()

        self.model._logits = rounded  # type: ignore[method-assign]


_GRADIENT_FAULTS = (
    "gradient-spike", "gradient-spikes", "gradient-noise", "frozen-position", "frozen-embedding",
    "frozen-vector",
)  # fmt: skip


def in_turn(fault: Fault, number: int) -> bool:
    """Whether a fault touches the step of this number."""
    if not fault.onset <= number < fault.onset + fault.steps:
        return False
    if fault.kind not in _NOW_AND_THEN:
        return True
    return derive_key(fault.onset, "now and then", str(number)) % 8 == 0


def round_activations(model: GPT, shift: int) -> None:
    """Round what attention, MLP and blocks put out, and its gradient, as fp16 would.

    Elementwise casts, never products: those take 400 times as long in fp16 on a CPU. Beyond
    65504 / 2^shift a number becomes infinite, as it would in fp16 beyond 65504.
    """
    factor = 2.0**shift

    def rounded(module: torch.nn.Module, given: Any, out: Tensor) -> Tensor:
        return (out * factor).half().float() / factor

    blocks: Any = model.blocks
    for block in blocks:
        for module in (block.attention, block.mlp, block):
            module.register_forward_hook(rounded)
