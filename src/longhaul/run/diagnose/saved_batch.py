"""What a step was trained on (`longhaul data at`); and copies of bad batches that outlive the text.

At the first masked step of an incident the batch is saved as `incidents/step-N/batch-SEGMENT.json`:
token numbers and the names of their documents, for whoever has neither the corpus nor longhaul.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from longhaul.config.load import recipe_from_values
from longhaul.config.recipe import Recipe
from longhaul.core.errors import UsageError
from longhaul.core.files import write_bytes
from longhaul.core.records import Decision, Finding, StepRecord
from longhaul.data.batches import BatchReader, BatchRequest
from longhaul.data.dataset import Dataset, DocumentSpan
from longhaul.data.verification import text_of
from longhaul.logbook.folder import FORMAT, RunFolder, open_run
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec
from longhaul.logbook.segments import read_segments

_MOST_FILES = 20
"""Saved in one run; where so many batches are bad, the last ones are no news."""
_MOST_TOKENS = 1 << 16
"""Token numbers in one file, about 400 kB; of a longer batch its first sequences are saved."""
_MOST_DOCUMENTS = 4096
"""Names in one file."""


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


Made = tuple[StepRecord, LedgerState]
"""A step as it was made: its record, and the ledger as it was by then."""


def line_to(
    folder: RunFolder, step: int, attempt: int | None
) -> tuple[dict[int, Made], tuple[Finding, ...]]:
    """Of each step up to `step` the last one made before it was: those it stands on; and its
    findings. Of a step made more than once the attempt's counts, or the last where it is None.
    UsageError if no such step was made.
    """
    ledger = LedgerState()
    made: dict[int, Made] = {}
    line: dict[int, Made] = {}
    findings: list[Finding] = []
    for record in read_journal(folder):
        if isinstance(record, Decision):
            ledger = fold(ledger, record)
        elif isinstance(record, Finding) and record.step == step:
            findings.append(record)
        elif isinstance(record, StepRecord):
            made[record.step] = record, ledger
            if record.step == step and attempt in (None, record.attempt):
                line = {number: item for number, item in made.items() if number <= step}
    if not line:
        steps = f"it has made steps {min(made)} to {max(made)}" if made else "it has made none"
        of_attempt = f" in attempt {attempt}" if attempt is not None else ""
        raise UsageError(f"step {step}: not made by run {folder.name}{of_attempt}", steps)
    own = line[step][0].attempt, line[step][0].segment
    return line, tuple(f for f in findings if (f.attempt, f.segment) == own)


def documents_at(run: str, runs: Path, step: int, attempt: int | None) -> Iterator[str]:
    """Lines for a person: a step's batch, each slot's documents; UsageError if never made."""
    folder = open_run(run, runs)
    target, ledger = line_to(folder, step, attempt)[0][step]
    segments = {str(item.number): item for item in read_segments(folder)}
    opening = segments.get(target.segment)
    # Another mixture may hold by now.
    recipe = (
        read_run_spec(folder).settings()
        if opening is None
        else recipe_from_values(opening.settings, opening.file)
    )
    yield (
        f"step {target.step}, attempt {target.attempt}, segment {target.segment}: "
        f"{target.sequences} sequences of {target.sequence_length} tokens, "
        f"draws {target.draw} to {target.next_draw - 1}, loss {target.loss:.4f}"
    )
    for slot in slots_of(text_of(folder, recipe), recipe, target, ledger):
        end = slot.begin + target.sequence_length
        tokens = f"tokens {slot.begin}–{end - 1}"
        yield f"slot {slot.number}: {slot.source}, epoch {slot.epoch}, {tokens}"
        for document in slot.documents:
            first = max(slot.begin, document.begin) - document.begin
            last = min(end, document.end) - document.begin - 1
            size = document.end - document.begin
            yield f"    {document.name}  tokens {first}–{last} of {size}"


def slots_of(
    dataset: Dataset, recipe: Recipe, record: StepRecord, ledger: LedgerState
) -> Iterator[SlotText]:
    """Each sequence of the batch that a step read; recipe and ledger are those it was made by."""
    with closing(BatchReader(dataset, recipe, ledger.mixture_before)) as reader:
        request = BatchRequest(record.draw, record.sequences, record.sequence_length, ledger.skips)
        for number, (place, epoch, begin) in enumerate(reader.slots(request).tolist()):
            source = dataset.sources[place]
            window = source.train.gather(np.array([begin]), record.sequence_length + 1)
            documents = source.train.documents_in(begin, begin + record.sequence_length)
            tokens = tuple(window[0].tolist())
            yield SlotText(number, source.name, epoch, begin, tokens, tuple(documents))


@dataclass(frozen=True)
class SavedBatches:
    """Saves bad batches of one run."""

    _folder: RunFolder
    _dataset: Dataset

    def save(self, record: StepRecord, recipe: Recipe, ledger: LedgerState) -> str | None:
        """Save the batch of a step; the file's path in the run's folder. None if there are enough
        already, or this one was saved before. Raises whatever kept it from being saved.
        """
        folder = self._folder.incidents / f"step-{record.step}"
        path = folder / f"batch-{record.segment}.json"
        saved = len(list(self._folder.incidents.glob("*/*.json")))
        if path.exists() or saved >= _MOST_FILES:
            return None
        self._folder.incidents.mkdir(exist_ok=True)  # a run's folder is not made anew
        folder.mkdir(exist_ok=True)
        body = self._body(record, recipe, ledger)
        write_bytes(path, json.dumps(body, ensure_ascii=False, indent=1).encode())
        return str(path.relative_to(self._folder.path))

    def _body(self, record: StepRecord, recipe: Recipe, ledger: LedgerState) -> Mapping[str, Any]:
        slots: list[Mapping[str, Any]] = []
        tokens = names = 0
        for slot in slots_of(self._dataset, recipe, record, ledger):
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
