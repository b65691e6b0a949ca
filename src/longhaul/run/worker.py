"""The worker: one attempt at a run, from its folder alone (DESIGN, "Who judges what").

Enters: a run's folder. Leaves: a trained model, or a state to go on from, and an exit code.
Never knows: how it was started.
"""

import os
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from longhaul.core.books import TimeBooks
from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.data.prepare import prepare
from longhaul.logbook.folder import open_run
from longhaul.logbook.lease import acquire
from longhaul.run.asked import read_asked
from longhaul.run.attempt import Attempt
from longhaul.run.book import Book
from longhaul.run.past import read_past
from longhaul.run.signals import listening
from longhaul.run.view import View


def work(run: Path, view: View) -> ExitCode:
    """Train the run in folder `run` until it is finished or has to stop.

    Raises:
        LeaseHeld: another process trains it.
        DataError: its text cannot be prepared.
        NeedsPerson: going on would do harm.
    """
    clock = RealClock()
    began = psutil.Process().create_time()
    books = TimeBooks(clock, "restart", already=max(0.0, time.time() - began))
    folder = open_run(run)
    with ExitStack() as leaving:
        lease = leaving.enter_context(acquire(folder, clock).keep())
        past = read_past(folder)
        if past.last_seen is not None:
            books.add("idle", max(0.0, began - past.last_seen))
        book = Book(folder, lease, past, clock, books)
        leaving.callback(book.close)
        asked = read_asked(folder)
        attempt = Attempt(folder, asked.settings(), past, book, view, clock)
        if past.damaged_lines:
            view.say(
                f"WARNING: {past.damaged_lines} damaged lines in the journal; a decision may be "
                f"lost: compare `longhaul diff {folder.name}`"
            )
        with books.booked("prepare"):
            dataset = prepare(attempt.recipe, Path(asked.prepared), view.say)
        wish = leaving.enter_context(listening(view.say))
        # Read by torch's OpenMP when it is loaded. By default a thread that waits for the others
        # spins for milliseconds; beside one busy process on two cores that made steps up to 54
        # times slower. A short spin costs a few percent on an idle machine (LOG.md, 2026-11-21).
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        # Torch takes a second to import; mistakes in the recipe or the text were told before it.
        from longhaul.run.flight import fly

        return fly(attempt, dataset, wish)
