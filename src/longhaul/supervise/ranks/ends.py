"""What the exit codes of a group say: it runs, it has ended, or it has failed. Pure.

Enters: exit codes by rank, what people or schedulers asked for. Leaves: an end, or none yet.
Never knows: processes.
"""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from longhaul.core.errors import ExitCode
from longhaul.supervise.causes.classify import Cause
from longhaul.supervise.ranks.watchdog import Verdict

_WELL = (ExitCode.FINISHED, ExitCode.START_AGAIN, ExitCode.INTERRUPTED)
"""Codes with which a worker ends on purpose, its state saved."""
_TOLD = (ExitCode.RECIPE_WRONG, ExitCode.DATA_WRONG, ExitCode.NEEDS_PERSON)
"""Codes with which a worker ends that has said what a person must do: starting it again changes
nothing."""
_UNHEARD = (-signal.SIGINT, -signal.SIGTERM)
"""A worker that was still importing when it was asked to stop had no handler yet, and no state."""


@dataclass(frozen=True, slots=True)
class End:
    """How a group ended."""

    exit_code: ExitCode | None = None
    """The run's exit code; None if it failed, or hangs."""
    rank: int = 0
    """Whose exit code it is."""
    hang: Verdict | None = None
    cause: Cause | None = None
    """What it was ended for, while its ranks still ran."""


def group_end(
    exit_codes: Sequence[int | None], stop: ExitCode | None, *, at_once: bool = False
) -> End | None:
    """How a group has ended; None while it runs, or while others follow one that ended well.

    One rank that says what is wrong speaks for all: the others die of its death.

    Args:
        exit_codes: by rank; None for those that run.
        stop: what was asked for; None if nothing was.
        at_once: the workers were killed because somebody asked twice.
    """
    if at_once:
        return End(stop)
    ended = [_heard(code, stop) for code in exit_codes if code is not None]
    for rank, code in enumerate(exit_codes):
        if code in _TOLD:
            return End(ExitCode(code), rank)
    if any(code not in _WELL for code in ended):
        return End()
    if len(ended) < len(exit_codes):
        return None
    # Rank 0 keeps the book: if it has finished, the run is finished.
    return End(ExitCode(ended[0]))


def _heard(code: int, stop: ExitCode | None) -> int:
    return stop if stop is not None and code in _UNHEARD else code
