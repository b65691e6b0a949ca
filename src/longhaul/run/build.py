"""Building what a trainer works with, on one device.

Enters: an attempt, prepared text, a device. Leaves: the trainer's parts, weights fresh.
Never knows: checkpoints; they are restored into the parts afterwards.
"""

import torch

from longhaul.checkpoint.saver import Saver
from longhaul.checkpoint.snapshots import SnapshotRing
from longhaul.config.load import with_overrides
from longhaul.config.recipe import Recipe
from longhaul.config.size import model_size
from longhaul.core.memory import available_memory
from longhaul.core.units import Bytes, short_count
from longhaul.data.batches import BatchReader
from longhaul.data.dataset import Dataset
from longhaul.model.gpt import GPT
from longhaul.model.initialise import build
from longhaul.model.precision import to_half
from longhaul.optim.build import build_optimizer
from longhaul.optim.groups import describe
from longhaul.optim.loss_scale import LossScale
from longhaul.run.attempt import Attempt
from longhaul.train.state import Progress
from longhaul.train.step import TrainingStep
from longhaul.train.trainer import Parts

_HALF_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def build_model(recipe: Recipe, dataset: Dataset, device: torch.device) -> GPT:
    """The recipe's model, filled, in its number format."""
    end_of_text = dataset.tokenizer.end_of_text
    model = build(recipe.model, dataset.vocab_size, recipe.seed, device, end_of_text)
    half = recipe.precision.half_weights
    if half is not None:
        to_half(model, _HALF_DTYPES[half], recipe.precision.islands)
    return model


def build_parts(attempt: Attempt, dataset: Dataset, device: torch.device) -> Parts:
    """Everything of a trainer but its position."""
    recipe, book = attempt.recipe, attempt.book
    settings = with_overrides(recipe, attempt.past.ledger.overrides_at(0))
    model = build_model(recipe, dataset, device)
    optimizer = build_optimizer(model, settings.optim)
    size = model_size(recipe.model, dataset.vocab_size)
    attempt.view.say(
        f"model: {short_count(size.total)} parameters, {short_count(size.non_embedding)} outside "
        f"embeddings, on {device.type} in {recipe.precision.compute}"
    )
    attempt.view.table(
        "optimizer groups",
        ("role", "tensors", "parameters", "lr", "decay"),
        [
            (
                row.role,
                str(row.tensors),
                f"{row.parameters:,}",
                f"{row.learning_rate:g}",
                f"{row.weight_decay:g}",
            )
            for row in describe(optimizer.groups, settings.optim)
        ],
    )
    return Parts(
        step=TrainingStep(
            model,
            optimizer,
            device,
            recipe.precision,
            recipe.seed,
            loss_scale=LossScale(settings.optim.loss_scale, device)
            if recipe.precision.half_weights == "fp16"
            else None,
            compiled=recipe.machine.compile,
            sources=[source.name for source in dataset.sources],
        ),
        progress=Progress(settings, dataset.identity),
        batches=BatchReader(
            dataset, recipe.seed, recipe.block_length(), recipe.order.cycle, recipe.data.stages
        ),
        dataset=dataset,
        saver=Saver(
            book.folder.checkpoints,
            attempt=book.lease.attempt,
            still_owner=book.lease.is_ours,
            clock=attempt.clock,
        ),
        snapshots=SnapshotRing(_snapshot_budget(recipe)),
        books=book.time,
        clock=attempt.clock,
    )


def _snapshot_budget(recipe: Recipe) -> Bytes:
    """Bytes of the host's memory for snapshots of the training state."""
    asked = recipe.checkpoint.snapshot_mb
    return int(asked * 1e6) if asked is not None else available_memory() // 10
