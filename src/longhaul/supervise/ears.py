"""Signals as bytes on a pipe, so that a loop can wait for them together with other things.

Enters: signals of this process. Leaves: their numbers, in the order they came; what they ask for.
Never knows: workers.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from longhaul.core.errors import ExitCode

STOPS: dict[signal.Signals, ExitCode] = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.START_AGAIN,
    signal.SIGUSR1: ExitCode.START_AGAIN,
    signal.SIGUSR2: ExitCode.START_AGAIN,
    signal.SIGHUP: ExitCode.START_AGAIN,
}
"""What asks for an end, and the exit code it asks for. Schedulers give notice by SIGTERM, SIGUSR1
or SIGUSR2; a terminal that closes says SIGHUP."""
PAUSE = signal.SIGTSTP
"""Ctrl-Z. The workers, in sessions of their own, do not hear it from the terminal."""


class Ears:
    """What was heard. Made by `listening`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def heard(self) -> list[signal.Signals]:
        """Stop signals and pauses since the last call."""
        came = b""
        with suppress(BlockingIOError):
            while piece := os.read(self.descriptor, 512):
                came += piece
        return [signal.Signals(number) for number in came if number in (*STOPS, PAUSE)]


@contextmanager
def listening() -> Iterator[Ears]:
    """Hear stop signals, and wake up for the deaths of children, for the body's duration."""
    reading_end, writing_end = os.pipe()
    for end in (reading_end, writing_end):
        os.set_blocking(end, False)
    previous = {number: signal.signal(number, _nothing) for number in _wanted()}
    wakes = signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
    try:
        yield Ears(reading_end)
    finally:
        signal.set_wakeup_fd(wakes)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reading_end)
        os.close(writing_end)


def _wanted() -> list[signal.Signals]:
    # Under nohup SIGHUP is ignored on purpose, and stays so. SIGINT is not: shells have it ignored
    # by whatever they start in the background, and somebody who sends it by hand means it.
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [n for n in (*STOPS, PAUSE, signal.SIGCHLD) if not (nohup and n == signal.SIGHUP)]


def _nothing(number: int, frame: FrameType | None) -> None:
    """The byte on the pipe is all there is to it."""
