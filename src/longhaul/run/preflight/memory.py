"""Preflight: whether the run will fit its devices, by an estimate that is held against a
measurement of the small twin; and whether the model can learn at all: one batch, over and over.
"""

from collections.abc import Iterator, Mapping

import torch

from longhaul.config.recipe import Recipe
from longhaul.core.machine import available_memory
from longhaul.core.units import Bytes, short_bytes
from longhaul.model.compiling import refuse_without_compiler
from longhaul.parallel.device import own_device, settle_torch
from longhaul.parallel.layout import Layout
from longhaul.parallel.recompute import checkpoint_activations
from longhaul.plan.memory import MemoryEstimate, estimate_memory, way_to_cut
from longhaul.run.preflight.context import ALONE, Check, PreflightContext, judged, skipped
from longhaul.run.preflight.data import vocabulary
from longhaul.train.equality import make_step, random_batches
from longhaul.train.memory import peak_of

VOCABULARY = 512
"""Of the small twin, for a measurement."""
_SHARE = 0.9
"""Of a device that tensors may take: the rest is for libraries and fragments."""
_NEAR = (0.75, 1.33)
"""An estimate within these times the measured peak is good enough to choose a layout by."""


def check_memory(context: PreflightContext) -> Iterator[Check]:
    """The estimate at true size against the device, and the estimator against the twin."""
    device = own_device(context.recipe.machine.device)
    settle_torch(context.twin())
    vocab_size, known = vocabulary(context)
    on_cpu = device.type == "cpu" and context.typed.device_bytes is None
    estimate = estimate_memory(context.recipe, vocab_size, context.layout, on_cpu)
    there, of_what = _memory_of(context, device)
    figure = (
        f"{short_bytes(estimate.total)} a rank of {context.world}"
        f"{'' if context.layout.size == 1 else f' ({context.layout})'}, "
        f"{estimate.micro_sequences} sequences at once: {_listed(estimate.classes)}; "
        f"{short_bytes(there)} {of_what}"
    )
    figure += "" if known else f" (the vocabulary is taken to have {vocab_size:,} tokens)"
    fits = estimate.total <= _SHARE * there
    remedy = "" if fits else _remedy(context, estimate)
    data = {"classes": dict(estimate.classes), "total": estimate.total, "device_bytes": there}
    yield judged("memory", figure, remedy, **data)
    yield _of_first_evaluation(context, estimate, there)
    yield _validated(context.twin(*ALONE), device)


def check_compiler(context: PreflightContext) -> Iterator[Check]:
    """Whether what the recipe compiles can be, else RecipeError; the twin compiles nothing."""
    device = own_device(context.recipe.machine.device)
    if context.typed.device_bytes is not None:
        yield skipped("compiler", "the run's machine is another: look for a C compiler there")
        return
    refuse_without_compiler(context.recipe, device)
    yield judged("compiler", f"what the recipe compiles for {device.type} can be compiled here")


def _of_first_evaluation(
    context: PreflightContext, estimate: MemoryEstimate, there: Bytes
) -> Check:
    recipe, interval = context.recipe, context.recipe.evaluation.interval_steps
    steps = recipe.total_steps()
    at = interval if interval and (steps is None or interval < steps) else steps
    when = "at the end" if at is None else f"at step {at:,}"
    total = sum(estimate.evaluation.values())
    figure = (
        f"{when}: {estimate.evaluated_sequences} sequences of {recipe.model.context:,} at once, "
        f"{short_bytes(total)} a rank: {_listed(estimate.evaluation)}"
    )
    remedy = "" if total <= _SHARE * there else _remedy(context, estimate)
    data = {"total": total, "at_once": estimate.evaluated_sequences, "step": at}
    return judged("first evaluation", figure, remedy, classes=dict(estimate.evaluation), **data)


def measured(recipe: Recipe, device: torch.device) -> dict[str, Bytes]:
    """What a `step` and an `evaluation` of a small recipe really take, with what stands."""
    step = make_step(recipe, VOCABULARY, device, None)
    recomputation = recipe.machine.activation_checkpointing
    if recomputation != "none":
        checkpoint_activations(step.model, recomputation)
    held = [*step.model.parameters(), *step.optimizer.tensors().values()]
    standing = sum(tensor.numel() * tensor.element_size() for tensor in held)
    micro = recipe.batch.micro_sequences
    batches = random_batches(recipe, VOCABULARY, 2, None)
    sequences = micro if isinstance(micro, int) else recipe.batch.sequences
    lr = recipe.optim.lr
    step(next(batches), sequences, lr, False)  # what is made once and kept is none of a step's
    batch = next(batches)
    of_step = peak_of(lambda: step(batch, sequences, lr, False), device)
    evaluated = recipe.evaluated_within(sequences * recipe.block_length())
    length = recipe.model.context
    of_evaluation = peak_of(lambda: step.rehearse_evaluation(evaluated, length), device)
    return {"step": standing + of_step, "evaluation": standing + of_evaluation}


def _validated(twin: Recipe, device: torch.device) -> Check:
    estimate = estimate_memory(twin, VOCABULARY, Layout(), device.type == "cpu")
    real = measured(twin, device)
    pairs = {
        "a step": (sum(estimate.step.values()), real["step"]),
        "an evaluation": (sum(estimate.evaluation.values()), real["evaluation"]),
    }
    ratios = {what: estimated / taken for what, (estimated, taken) in pairs.items()}
    figure = "the small twin takes " + ", ".join(
        f"{short_bytes(taken)} in {what}, estimated {short_bytes(estimated)} ({ratios[what]:.2f}×)"
        for what, (estimated, taken) in pairs.items()
    )
    near = all(_NEAR[0] <= ratio <= _NEAR[1] for ratio in ratios.values())
    remedy = "" if near else "do not trust the estimate above: measure on one of the devices"
    return judged("memory estimate", figure, remedy, ratios=ratios, measured=real)


def _memory_of(context: PreflightContext, device: torch.device) -> tuple[Bytes, str]:
    """Of one rank's device, and in words which that is."""
    if context.typed.device_bytes is not None:
        return context.typed.device_bytes, "on each device, as given"
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory, "on this machine's device"
    ranks = min(context.world, context.recipe.machine.processes)
    return available_memory() // ranks, "available on this host" + (" for it" if ranks > 1 else "")


def _listed(classes: Mapping[str, Bytes]) -> str:
    ordered = sorted(classes.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {short_bytes(size)}" for name, size in ordered)


def _remedy(context: PreflightContext, estimate: MemoryEstimate) -> str:
    elsewhere = (
        "" if context.typed.device_bytes else "; for other devices than this one give --device-gb"
    )
    return f"cut {estimate.largest}: {way_to_cut(estimate, context.recipe)}{elsewhere}"


_STEPS = 80
_LEFT = 0.8
"""Of the first loss, that may be left at the end."""
_SEQUENCES = 2
_OVERRIDES = (
    "model.dropout=0.0", "model.attention_dropout=0.0", "model.embedding_dropout=0.0",
    f"batch.sequences={_SEQUENCES}", "batch.sequence_length=32",
)  # fmt: skip


def check_learning(context: PreflightContext) -> Iterator[Check]:
    """Two random sequences, 80 steps at the twin's peak rate.

    A model whose weights are frozen, whose gradients are wrong or whose rate is off by a thousand
    cannot learn a batch by heart; one that can may still fail for other reasons.
    """
    recipe = context.twin(*ALONE, *_OVERRIDES)
    settle_torch(recipe)
    step = make_step(recipe, VOCABULARY, own_device(recipe.machine.device), None)
    batch = next(random_batches(recipe, VOCABULARY, 1, None))
    losses = [step(batch, _SEQUENCES, recipe.optim.lr, False)[0].item() for _ in range(_STEPS)]
    first, last = losses[0], losses[-1]
    figure = f"one batch, {_STEPS} times at rate {recipe.optim.lr:g}: loss {first:.3f} → {last:.3f}"
    fine = last <= _LEFT * first
    remedy = (
        "the model does not learn even what it sees again and again: look at optim.lr, "
        "optim.lr_factors and the optimizer's other settings"
    )
    yield judged("one batch", figure, "" if fine else remedy, first=first, last=last)
