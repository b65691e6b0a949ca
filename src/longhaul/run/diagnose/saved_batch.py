"""What a step was trained on; and of a bad batch a copy that outlives the run's text.

At the first masked step of an incident the batch is saved as `incidents/step-N/batch-SEGMENT.json`:
token numbers, and the names of the documents they are from. It is what `longhaul data at` tells,
and what anybody can look at who has neither the corpus nor longhaul.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from longhaul.config.recipe import Recipe
from longhaul.core.files import write_bytes
from longhaul.core.records import StepRecord
from longhaul.data.batches import BatchReader, BatchRequest
from longhaul.data.dataset import Dataset, DocumentSpan
from longhaul.logbook.folder import FORMAT, RunFolder

_MOST_FILES = 20
"""Saved in one run; where so many batches are bad, the last ones are no news."""
_MOST_TOKENS = 1 << 16
"""Token numbers in one file, about 400 kB; of a longer batch its first sequences are saved."""
_MOST_DOCUMENTS = 4096
"""Names in one file."""

Skips = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class SlotText:
    """One sequence of a batch, and where it is from."""

    number: int
    source: str
    epoch: int
    begin: int
    """Position of its first token in the source's stream."""
    tokens: tuple[int, ...]
    """Inputs, and after them the last target."""
    documents: tuple[DocumentSpan, ...]


def slots_of(
    dataset: Dataset, recipe: Recipe, record: StepRecord, skips: Skips
) -> Iterator[SlotText]:
    """Each sequence of the batch that a step read.

    Args:
        dataset: the run's text.
        recipe: the run's.
        record: of the step.
        skips: of the ledger when it was made.
    """
    reader = BatchReader(
        dataset, recipe.seed, recipe.block_length(), recipe.order.cycle, recipe.data.stages
    )
    try:
        request = BatchRequest(record.draw, record.sequences, record.sequence_length, skips)
        for number, slot in enumerate(reader.slots(request)):
            source = dataset.sources[slot.source]
            window = source.train.gather(np.array([slot.begin]), record.sequence_length + 1)
            documents = source.train.documents_in(slot.begin, slot.begin + record.sequence_length)
            tokens = tuple(window[0].tolist())
            yield SlotText(number, source.name, slot.epoch, slot.begin, tokens, tuple(documents))
    finally:
        reader.close()


class SavedBatches:
    """Saves bad batches of one run.

    Args:
        folder: of the run.
        dataset: the run's text.
    """

    def __init__(self, folder: RunFolder, dataset: Dataset) -> None:
        self._folder = folder
        self._dataset = dataset

    def save(self, record: StepRecord, recipe: Recipe, skips: Skips) -> str | None:
        """Save the batch of a step; the file's path in the run's folder.

        None if there are enough already, or this one was saved before.

        Raises:
            Exception: whatever kept it from being saved.
        """
        folder = self._folder.incidents / f"step-{record.step}"
        path = folder / f"batch-{record.segment}.json"
        saved = len(list(self._folder.incidents.glob("*/*.json")))
        if path.exists() or saved >= _MOST_FILES:
            return None
        self._folder.incidents.mkdir(exist_ok=True)  # a run's folder is not made anew
        folder.mkdir(exist_ok=True)
        body = self._body(record, recipe, skips)
        write_bytes(path, json.dumps(body, ensure_ascii=False, indent=1).encode())
        return str(path.relative_to(self._folder.path))

    def _body(self, record: StepRecord, recipe: Recipe, skips: Skips) -> Mapping[str, Any]:
        slots: list[Mapping[str, Any]] = []
        tokens = names = 0
        for slot in slots_of(self._dataset, recipe, record, skips):
            tokens += len(slot.tokens)
            names += len(slot.documents)
            if slots and (tokens > _MOST_TOKENS or names > _MOST_DOCUMENTS):
                break
            documents = slot.documents[:_MOST_DOCUMENTS]
            slots.append(
                {
                    "slot": slot.number, "source": slot.source, "epoch": slot.epoch,
                    "begin": slot.begin, "documents": [document.name for document in documents],
                    "tokens": " ".join(map(str, slot.tokens)),
                }
            )  # fmt: skip
        return {
            "format": FORMAT, "step": record.step, "attempt": record.attempt,
            "segment": record.segment, "draw": record.draw, "next_draw": record.next_draw,
            "sequences": record.sequences, "sequence_length": record.sequence_length,
            "slots_left_out": record.sequences - len(slots), "slots": slots,
        }  # fmt: skip
