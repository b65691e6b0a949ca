"""Preflight: whether the model can learn at all: one batch, over and over.

A model whose weights are frozen, whose gradients are wrong or whose rate is off by a thousand
cannot learn a batch by heart; one that can may still fail for other reasons.

Enters: the ground. Leaves: a line of the report. Never knows: text; the batch is random.
"""

from collections.abc import Iterator

import torch

from longhaul.config.recipe import Recipe
from longhaul.core.units import Nats
from longhaul.parallel.device import own_device, settle_torch
from longhaul.run.preflight.ground import ALONE, Check, Ground, judged
from longhaul.run.preflight.memory import VOCABULARY
from longhaul.train.equality import make_step, random_batches

_STEPS = 80
_LEFT = 0.8
"""Of the first loss, that may be left at the end."""
_SEQUENCES = 2
_OVERRIDES = (
    "model.dropout=0.0", "model.attention_dropout=0.0", "model.embedding_dropout=0.0",
    f"batch.sequences={_SEQUENCES}", "batch.sequence_length=32",
)  # fmt: skip


def check_learning(ground: Ground) -> Iterator[Check]:
    """Two random sequences, 80 steps at the twin's peak rate."""
    recipe = ground.twin(*ALONE, *_OVERRIDES)
    first, last = learn_by_heart(recipe, own_device(recipe.machine.device))
    told = f"one batch, {_STEPS} times at rate {recipe.optim.lr:g}: loss {first:.3f} → {last:.3f}"
    fine = last <= _LEFT * first
    remedy = (
        "the model does not learn even what it sees again and again: look at optim.lr, "
        "optim.lr_factors and the optimizer's other settings"
    )
    yield judged("one batch", told, "" if fine else remedy, first=first, last=last)


def learn_by_heart(recipe: Recipe, device: torch.device) -> tuple[Nats, Nats]:
    """The first loss and the last of a batch that is trained on again and again."""
    settle_torch(recipe)
    step = make_step(recipe, VOCABULARY, device, None)
    batch = next(random_batches(recipe, VOCABULARY, 1, None))
    losses = [step(batch, _SEQUENCES, recipe.optim.lr, False)[0].item() for _ in range(_STEPS)]
    return losses[0], losses[-1]
