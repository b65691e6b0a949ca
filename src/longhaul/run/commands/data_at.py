"""`longhaul data at`: which documents a step was trained on."""

from collections.abc import Iterator
from pathlib import Path

from longhaul.core.errors import UsageError
from longhaul.core.records import Decision, StepRecord
from longhaul.data.verification import text_of
from longhaul.logbook.folder import RunFolder, open_run
from longhaul.logbook.ledger import LedgerState, fold
from longhaul.logbook.reading import read_journal
from longhaul.logbook.run_spec import read_run_spec
from longhaul.run.diagnose.saved_batch import slots_of


def documents_at(run: str, runs: Path, step: int, attempt: int | None) -> Iterator[str]:
    """Lines for a person: the batch, then each slot with its documents.

    Raises:
        UsageError: no such step was made.
    """
    folder = open_run(run, runs)
    record, ledger = _find(folder, step, attempt)
    recipe = read_run_spec(folder).settings()
    dataset = text_of(folder)
    yield (
        f"step {record.step}, attempt {record.attempt}, segment {record.segment}: "
        f"{record.sequences} sequences of {record.sequence_length} tokens, "
        f"draws {record.draw} to {record.next_draw - 1}, loss {record.loss:.4f}"
    )
    for slot in slots_of(dataset, recipe, record, ledger.skips):
        end = slot.begin + record.sequence_length
        tokens = f"tokens {slot.begin}–{end - 1}"
        yield f"slot {slot.number}: {slot.source}, epoch {slot.epoch}, {tokens}"
        for document in slot.documents:
            first = max(slot.begin, document.begin) - document.begin
            last = min(end, document.end) - document.begin - 1
            size = document.end - document.begin
            yield f"    {document.name}  tokens {first}–{last} of {size}"


def _find(folder: RunFolder, step: int, attempt: int | None) -> tuple[StepRecord, LedgerState]:
    """The last record of that step, and the ledger as it was by then."""
    ledger, found = LedgerState(), None
    made: tuple[int, int] | None = None
    for record in read_journal(folder):
        if isinstance(record, Decision):
            ledger = fold(ledger, record)
        elif isinstance(record, StepRecord):
            made = _widened(made, record.step)
            if record.step == step and attempt in (None, record.attempt):
                found = record, ledger
    if found is None:
        steps = f"it has made steps {made[0]} to {made[1]}" if made else "it has made no step"
        of_attempt = f" in attempt {attempt}" if attempt is not None else ""
        raise UsageError(f"step {step}: not made by run {folder.name}{of_attempt}", steps)
    return found


def _widened(made: tuple[int, int] | None, step: int) -> tuple[int, int]:
    return (min(made[0], step), max(made[1], step)) if made else (step, step)
