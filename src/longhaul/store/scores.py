"""What checkpoints were judged to be, beside training: events in journal files of their own.

In a store each is a file, `REMOTE/scores/step-120-1a2b3c4d5e6f-0f1e2d3c.json`, named by its
checkpoint's place and by what was asked; machines that judge one run find each other's there.
"""

import hashlib
import json
from contextlib import suppress

from longhaul.core.events import EventKind
from longhaul.core.records import Event, RecordError, from_line
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.journal import Journal
from longhaul.logbook.reading import journal_files, read_journal
from longhaul.store.store_files import StoreFiles

AUTHOR = "evaluator"
"""Of the journal files."""
AUTHOR_OF_COPY = "judge"
"""Of those in the copy of a log from a store, which may bring files of the evaluator's with it."""
FOLDER = "scores"


def read_scores(folder: RunFolder) -> list[Event]:
    """What checkpoints of a run were judged to be, in order."""
    events = (r for r in read_journal(folder, steps=False) if isinstance(r, Event))
    return [event for event in events if event.kind == EventKind.SCORED]


def write_score(folder: RunFolder, event: Event, author: str = AUTHOR) -> None:
    """Write a result into the run's journal; OSError if it could not be."""
    # In the attempt that saved the checkpoint: so no number is used that a trainer would skip.
    journal = Journal(folder, event.attempt, author, uses_reserve=False)
    try:
        journal.append_durably(event)
    finally:
        journal.close()


def score_path(event: Event) -> str:
    """Where a result lies, below the run's address."""
    asked = hashlib.sha256(json.dumps(event.data.get("asked")).encode()).hexdigest()
    return f"{FOLDER}/step-{event.step}-{str(event.data.get('manifest'))[:12]}-{asked[:8]}.json"


def bring_scores(files: StoreFiles, folder: RunFolder) -> None:
    """Write into the copy of a run's log what others have left in its store; StoreError if that
    does not answer.
    """
    known = {score_path(event) for event in read_scores(folder)}
    attempts = {file.attempt for file in journal_files(folder.journal)}
    for path in (f"{FOLDER}/{name}" for name in files.names(FOLDER)):
        if path in known:
            continue
        with suppress(RecordError):  # a stranger's, or a later longhaul's
            found = from_line((files.read_small(path) or b"").strip())
            if not isinstance(found, Event) or found.kind != EventKind.SCORED:
                continue
            # No attempt that this run has not made, whose number a trainer would skip.
            if found.attempt in attempts and score_path(found) == path:
                write_score(folder, found, AUTHOR_OF_COPY)
