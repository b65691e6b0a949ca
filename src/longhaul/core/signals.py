"""Signals, turned into a stop request that is granted at a step boundary."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from longhaul.core.errors import ExitCode
from longhaul.core.output import flush_outputs, print_error
from longhaul.core.units import Seconds

_REASONS = {ExitCode.INTERRUPTED: "interrupted", ExitCode.START_AGAIN: "preempted"}
_HEARD_WITHIN_S: Seconds = 0.2
"""For the last word of a process that ends at once."""
NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Schedulers differ in which of them they send; the supervisor passes all on as SIGTERM."""


class StopRequest:
    """What signals have asked for so far; `say` takes a sentence within a signal handler,
    `orphaned` tells whether the supervisor has died, which a signal reports too.
    """

    def __init__(
        self, say: Callable[[str], None], orphaned: Callable[[], bool] = lambda: False
    ) -> None:
        self.exit_code: ExitCode | None = None
        """Asked for, of this process or of another one of the same run."""
        self._say = say
        self._orphaned = orphaned

    @property
    def reason(self) -> str:
        """Why the run ends, for people; empty if nothing was asked for."""
        if self.exit_code is None:
            return ""
        return "its supervisor died" if self._orphaned() else _REASONS[self.exit_code]

    def hear(self, number: int, frame: FrameType | None) -> None:
        """Signal handler."""
        if number == signal.SIGINT and self.exit_code == ExitCode.INTERRUPTED:
            self._say("SIGINT again: ending at once; what was done since the last save is lost")
            flush_outputs(_HEARD_WITHIN_S)
            os._exit(ExitCode.INTERRUPTED)
        interrupted = number == signal.SIGINT
        self.exit_code = ExitCode.INTERRUPTED if interrupted else ExitCode.START_AGAIN
        name = signal.Signals(number).name
        hint = "; once more stops at once" if interrupted else ""
        self._say(f"{name}: finishing this step and saving{hint}")


def leave_on_notices() -> None:
    """From now on a scheduler's notice ends this process with 16: there is nothing to save."""
    for number in NOTICES:
        signal.signal(number, _leave)


def ignore_notices() -> None:
    """The exit code stands; a notice that comes now must not put another one in its place."""
    for number in NOTICES:
        signal.signal(number, signal.SIG_IGN)


def leave_on_interrupt() -> None:
    """From now on SIGINT ends this process at once, unless it is ignored (in the background)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave_interrupted)


def leave_in_order_on_interrupt() -> Callable[[], bool]:
    """From now on the first SIGINT unwinds this process, which gives its lease back; the second one
    ends it at once. Returns what tells whether the first one came.
    """
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, _leave_interrupted)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    return lambda: came


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """While text is prepared there is nothing to save: a scheduler's notice ends it with 16."""
    with handled(NOTICES, _leave):
        yield


@contextmanager
def listening(
    say: Callable[[str], None], orphaned: Callable[[], bool] = lambda: False
) -> Iterator[StopRequest]:
    """Listen for the body's duration, then put the previous handlers back; see `StopRequest`."""
    stop_request = StopRequest(say, orphaned)
    with handled((signal.SIGINT, *NOTICES), stop_request.hear):
        yield stop_request


def _leave_interrupted(number: int, frame: FrameType | None) -> None:
    print_error("longhaul: interrupted")
    flush_outputs(_HEARD_WITHIN_S)
    os._exit(ExitCode.INTERRUPTED)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(ExitCode.START_AGAIN)


@contextmanager
def handled(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Signals go to `handler` for the body's duration, and to whom they went before after it."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)
