"""`make drill-resume`: a run killed at random moments, against the same run left alone."""

import time
from pathlib import Path

from drills.moments import random_moments, wait_for
from drills.runs import LONGEST_S, Say, compare, set_up, start, to_the_end
from longhaul.core.clocks import time_spent
from longhaul.core.records import Event
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.store.run_differences import steps_of


def drill_resume(
    kills: int, seed: int, room: Path, say: Say, options: tuple[str, ...] = ()
) -> bool:
    """Run the drill; True if the killed run ended in the very bytes of the undisturbed one.

    Saves, evaluations and starts are among the moments. The recipe is small and has gradient
    accumulation, a curriculum, dropout, a skipped range of data and an override in the ledger.

    Args:
        kills: how many.
        seed: of their moments.
        room: a folder for the runs.
        say: takes the story.
        options: settings of the recipe, `path=value`.
    """
    began = time.monotonic()
    reference = set_up(room, "undisturbed", options)
    seconds = to_the_end(reference)
    steps = _reached(reference)
    spent = time_spent(read_journal(reference))
    start_up_s = spent.get("start-up", 0.0) + spent.get("prepare", 0.0)
    say(f"undisturbed: {steps} steps in {seconds:.1f} s")
    killed = set_up(room, "killed", options)
    struck = 0
    for number, moment in enumerate(random_moments(kills, steps, start_up_s, seed), start=1):
        with start(killed, "worker") as worker:  # which is killed when it is closed
            come = wait_for(moment, killed, worker, LONGEST_S)
        struck += come
        what = f"in {moment.phase}" if come else f"meant for {moment.phase}, which did not come"
        delay = f"{moment.delay_s * 1000:.0f} ms in"
        say(f"kill {number:>3}: {what}, {delay}; step {_reached(killed)} reached")
    to_the_end(killed)
    same = compare(reference, killed, say)
    attempts = [e for e in read_journal(killed) if isinstance(e, Event)]
    trained = sum(event.kind == "attempt-started" for event in attempts)
    say(
        f"{struck} of {kills} kills struck, {trained} attempts got as far as training, "
        f"{time.monotonic() - began:.0f} s: {'PASSED' if same else 'FAILED'}"
    )
    return same and struck == kills


def _reached(folder: RunFolder) -> int:
    return max((record.step for record in steps_of(folder)), default=0)
