"""One captured (state, batches, generators): all that it takes to compute some steps again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from longhaul.checkpoint.capture import TrainingState
from longhaul.checkpoint.tensor_file import write_tensor_file
from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe
from longhaul.core.files import write_json
from longhaul.core.records import StepRecord
from longhaul.data.batches import Batch
from longhaul.logbook.ledger import Reset
from longhaul.store.manifest import RefusedCheckpoint, read_json, table, versioned

_FORMAT = 1
_KEYS = {"vocab_size", "end_of_text", "settings", "steps", "facts"}
_AS_THEY_ARE = ("step", "learning_rate", "micro_sequences", "window", "read_gauges")
_STEP_KEYS = {*_AS_THEY_ARE, "draw", "next_draw", "settings"}


@dataclass(frozen=True)
class StepInput:
    """Everything a step is made from besides the state before it."""

    step: int
    """Updates made once it is done."""
    settings: Recipe
    """In force at this step."""
    batch: Batch
    learning_rate: float
    micro_sequences: int
    window: int | None = None
    """Positions that windowed layers attend to, while a stage of `model.window_stages` holds."""
    read_gauges: bool = False
    """Compiled, steps with gauges are code of their own."""
    resets: tuple[Reset, ...] = ()
    """Of the ledger when the step was made. A folder holds none: its state has been through them,
    and its few steps lie within one stretch."""


def given_to(
    record: StepRecord, settings: Recipe, batch: Batch, resets: tuple[Reset, ...]
) -> StepInput:
    """What a step was given that left this record; settings, batch and resets are those of then."""
    return StepInput(
        step=record.step,
        settings=settings,
        batch=batch,
        learning_rate=record.learning_rate,
        micro_sequences=settings.micro_sequences(record.step - 1),
        window=record.attention_window,
        read_gauges=bool(record.gauges),
        resets=resets,
    )


@dataclass(frozen=True)
class Bundle:
    """A training state, and the steps to make from it."""

    state: TrainingState
    """On the host: `model`, `optim`, `generators` and, with fp16 weights, `loss_scale`."""
    inputs: tuple[StepInput, ...]
    vocab_size: int
    end_of_text: int | None
    resets_done: int = 0
    """Number of the last reset that the state has been through."""

    @property
    def step(self) -> int:
        """The first step it makes."""
        return self.inputs[0].step


def save_bundle(folder: Path, bundle: Bundle) -> None:
    """Write `bundle` to a new folder; OSError if it exists, or the medium refuses."""
    folder.mkdir(parents=True)
    write_tensor_file(folder / "state.safetensors", bundle.state.tensors)
    batches: dict[str, Tensor] = {}
    settings: list[Recipe] = []
    for given in bundle.inputs:
        batches[f"{given.step}.tokens"] = given.batch.tokens_BT.contiguous()
        batches[f"{given.step}.targets"] = given.batch.targets_BT.contiguous()
        if given.settings not in settings:
            settings.append(given.settings)
    write_tensor_file(folder / "batches.safetensors", batches)
    body = {
        "format_version": _FORMAT,
        "vocab_size": bundle.vocab_size,
        "end_of_text": bundle.end_of_text,
        "settings": [recipe.model_dump(mode="json") for recipe in settings],
        "steps": [
            {name: getattr(given, name) for name in _AS_THEY_ARE}
            | {"draw": given.batch.draw, "next_draw": given.batch.next_draw}
            | {"settings": settings.index(given.settings)}
            for given in bundle.inputs
        ],
        "facts": bundle.state.facts,
    }
    write_json(folder / "bundle.json", body)


def load_bundle(folder: Path) -> Bundle:
    """Read what `save_bundle` wrote. RefusedCheckpoint if it is no such folder, or damaged;
    RecipeError if its settings are none of this version's.
    """
    what = str(folder / "bundle.json")
    body = versioned(read_json(folder / "bundle.json"), _FORMAT, _KEYS, what)
    try:
        state = load_file(folder / "state.safetensors")
        batches = load_file(folder / "batches.safetensors")
        settings = [recipe_from_values(values) for values in body["settings"]]
        inputs = tuple(
            _input(table(facts, _STEP_KEYS, what), settings, batches) for facts in body["steps"]
        )
        return Bundle(
            TrainingState(state, body["facts"]), inputs, body["vocab_size"], body["end_of_text"]
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise RefusedCheckpoint(f"{folder}: no bundle that can be read ({error})") from error


def _input(
    facts: Mapping[str, Any], settings: Sequence[Recipe], batches: Mapping[str, Tensor]
) -> StepInput:
    step = facts["step"]
    tokens_BT, targets_BT = batches[f"{step}.tokens"], batches[f"{step}.targets"]
    if tokens_BT.dtype != torch.int64 or tokens_BT.shape != targets_BT.shape:
        raise ValueError(f"the batch of step {step} is none")
    return StepInput(
        settings=settings[facts["settings"]],
        batch=Batch(tokens_BT, targets_BT, targets_BT.numel(), facts["draw"], facts["next_draw"]),
        **{name: facts[name] for name in _AS_THEY_ARE},
    )
