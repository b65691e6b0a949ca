"""A run's model, opened for reading: `longhaul sample` and `longhaul eval`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from longhaul.checkpoint.capture import StateMismatch
from longhaul.checkpoint.loader import load_part, tensors_reader
from longhaul.config.load import with_overrides
from longhaul.config.recipe import MOST_TOKENS_EVALUATED, Recipe
from longhaul.config.size import model_size
from longhaul.core.errors import UsageError
from longhaul.core.units import loss_in_words, short_bytes
from longhaul.data.dataset import Dataset
from longhaul.data.tokenizing import Tokenizer
from longhaul.data.verification import text_of
from longhaul.logbook.folder import RunFolder, open_run
from longhaul.logbook.ledger import load_ledger
from longhaul.logbook.run_spec import read_run_spec
from longhaul.model.compiling import refuse_without_compiler
from longhaul.model.gpt import GPT
from longhaul.model.initialise import allocate, fill_buffers, to_number_format
from longhaul.parallel.device import own_device, settle_torch
from longhaul.run.by_layer import is_too_large, read_by_layer
from longhaul.store.catalogue import Checkpoint, usable
from longhaul.store.manifest import Manifest, RefusedCheckpoint
from longhaul.train.evaluation import Evaluation, evaluate
from longhaul.train.sampling import prompt_tokens, sample_tokens
from longhaul.train.state import ModelState

_ANGLE_BYTES = 24
"""Of a position and channel while angles are computed: in float64, and twice in float32."""
_MOST_UNFINISHED = 8
"""Tokens that may wait for the rest of a character; four bytes make one, so none ever comes."""


@dataclass(frozen=True)
class Trained:
    """A model of a run, on its device."""

    model: GPT
    dataset: Dataset
    recipe: Recipe
    device: torch.device
    step: int
    by_layer: bool = False
    """Its weights are read from their files in each pass."""

    def write(
        self,
        prompt: str | None = None,
        tokens: int | None = None,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Iterator[str]:
        """The prompt, then what follows it, in pieces as drawn; what is None is the recipe's."""
        sample, tokenizer = self.recipe.sample, self.dataset.tokenizer
        prompt = sample.prompt if prompt is None else prompt
        yield prompt
        drawn = sample_tokens(
            self.model,
            prompt_tokens(tokenizer, prompt),
            most_tokens=tokens or sample.tokens or 200,
            context=self.recipe.model.context,
            temperature=sample.temperature if temperature is None else temperature,
            top_k=sample.top_k,
            seed=seed,
            device=self.device,
            end_of_text=tokenizer.end_of_text,
        )
        yield from pieces_of(drawn, tokenizer)

    def evaluate(self) -> Evaluation:
        """Losses on the whole validation split."""
        recipe, at_once = self.recipe, self.recipe.evaluated_at_once(self.step)
        if self.by_layer:  # each pass reads all weights, and halves this where memory runs out
            at_once = max(1, MOST_TOKENS_EVALUATED // recipe.model.context)
        what = self.model, self.dataset, self.device
        return evaluate(
            *what,
            recipe.precision,
            recipe.model.context,
            at_once,
            None,
            loss_from=recipe.data.loss_from,
        )

    def evaluated(self) -> str:
        """The same, in words."""
        result = self.evaluate()
        lines = [
            f"step {self.step}: validation loss "
            f"{loss_in_words(result.loss, result.bits_per_byte)}, over {result.tokens:,} tokens"
        ]
        if len(result.sources) > 1:
            lines += [f"  {name}: {split.loss:.4f}" for name, split in result.sources.items()]
        return "\n".join(lines)


def pieces_of(drawn: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of tokens as they come, in pieces that no later token changes.

    A character may span tokens, and a token may begin with a space only behind another one: so a
    piece is what a token adds to the text of those of the piece before.
    """
    recent: list[int] = []
    known = 0
    for token in drawn:
        recent.append(token)
        before, text = tokenizer.decode(recent[:known]), tokenizer.decode(recent)
        unfinished = text.endswith("\ufffd") and len(recent) - known < _MOST_UNFINISHED
        if len(text) > len(before) and not unfinished:
            yield text[len(before) :]
            recent = recent[known:]
            known = len(recent)
    if rest := tokenizer.decode(recent)[len(tokenizer.decode(recent[:known])) :]:
        yield rest


def open_trained(
    run: str,
    runs: Path,
    step: int | None,
    device: str | None = None,
    by_layer: bool | None = None,
) -> Trained:
    """Load a checkpoint's model; UsageError if there is none, RefusedCheckpoint if damaged."""
    folder = open_run(run, runs)
    ledger, _ = load_ledger(folder)
    newest_first = reversed(usable(folder.checkpoints, ledger.checkpoint_health))
    there = {checkpoint.step: checkpoint for checkpoint in newest_first}
    if not there or (step is not None and step not in there):
        known = ", ".join(map(str, there)) or "none yet"
        which = f"checkpoint step-{step}" if step is not None else "a checkpoint"
        raise UsageError(f"run {folder.name} does not have {which}", f"it has: {known}")
    chosen = there[max(there) if step is None else step]
    try:
        return load_trained(folder, chosen, chosen.path, text_of(folder), None, device, by_layer)
    except (RefusedCheckpoint, StateMismatch) as refusal:
        others = ", ".join(str(known) for known in there if known != chosen.step)
        way = f"name another with --step: {others}" if others else "it is the only one"
        raise UsageError(refusal.message, way) from None


def load_trained(
    folder: RunFolder,
    chosen: Checkpoint,
    path: Path,
    dataset: Dataset,
    fetched: Manifest | None = None,
    device: str | None = None,
    by_layer: bool | None = None,
) -> Trained:
    """Load a checkpoint of the run in `folder`, whose files lie at `path`; of one that was fetched
    in part, `fetched` is the manifest. `device` is taken instead of the run's.

    `by_layer`: weights stay in the files, which must stay too, and each block's are read when it
    computes (`run/by_layer.py`); None does so where they do not fit the device.

    Raises:
        RefusedCheckpoint: it is damaged.
        StateMismatch: it is that of another model.
        UsageError: the run's files do not fit it.
    """
    ledger, _ = load_ledger(folder)
    recipe = with_overrides(read_run_spec(folder).settings(), ledger.overrides_at(chosen.step))
    if device is not None:
        recipe = with_overrides(recipe, {"machine.device": device}, {"machine.device": "--device"})
    found = own_device(recipe.machine.device)
    settle_torch(recipe)
    _refuse_another_size(folder, recipe, dataset, chosen)
    refuse_without_compiler(recipe, found, trains=False)
    end_of_text = dataset.tokenizer.end_of_text
    model = allocate(recipe.model, dataset.vocab_size, "meta", end_of_text)
    to_number_format(model, recipe.precision)
    if by_layer or (by_layer is None and is_too_large(model, found)):
        fill = tensors_reader(path, "model", ModelState(model).tensors(), fetched)
        read_by_layer(model, found, fill)
        model.eval()
        return Trained(model, dataset, recipe, found, chosen.step, by_layer=True)
    model.to_empty(device=found)
    fill_buffers(model)
    load_part(path, "model", ModelState(model), fetched)
    model.eval()
    return Trained(model, dataset, recipe, found, chosen.step)


def _refuse_another_size(
    folder: RunFolder, recipe: Recipe, dataset: Dataset, chosen: Checkpoint
) -> None:
    """Before anything is allocated: what the run's files say must fit what the checkpoint holds."""
    model, stored, spec = recipe.model, chosen.size_bytes, folder.path / "asked.json"
    # A byte a parameter is less than any format takes; layers first, as they are added singly.
    fits = max(model.layers, dataset.vocab_size) <= stored
    if not fits or model_size(model, dataset.vocab_size).total > stored:
        raise UsageError(
            f"{spec}: its model cannot be that of {chosen.path}, which has {short_bytes(stored)}",
            "put the file back as it was: it decides what is allocated",
        )
    of_position = model.key_width * (_ANGLE_BYTES + 8 * model.layers * model.key_heads)
    if (needed := model.context * of_position) > psutil.virtual_memory().total:
        raise UsageError(
            f"{spec}: model.context: {model.context:,} positions need "
            f"{short_bytes(needed)} of memory to write, and this machine has less",
            "open it on a larger machine, or put the file back as it was",
        )
