"""Signals as bytes in a pipe, and the lifeline, whose end tells of the supervisor's death."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from longhaul.core.errors import ExitCode
from longhaul.core.units import Seconds

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


def heard(descriptor: int) -> list[signal.Signals]:
    """Stop signals and pauses since the last call; `descriptor`: what `listening` gave."""
    came = b""
    with suppress(BlockingIOError):
        while piece := os.read(descriptor, 512):
            came += piece
    return [signal.Signals(number) for number in came if number in (*STOPS, PAUSE)]


@contextmanager
def listening() -> Iterator[int]:
    """Hear stop signals, and wake up for the deaths of children, for the body's duration: what came
    can be read from a descriptor (`heard`).
    """
    # Under nohup SIGHUP is ignored on purpose, and stays so. SIGINT is not: shells have it ignored
    # by whatever they start in the background, and somebody who sends it by hand means it.
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    wanted = {*STOPS, PAUSE, signal.SIGCHLD} - ({signal.SIGHUP} if nohup else set())
    reading_end, writing_end = os.pipe()
    for end in (reading_end, writing_end):
        os.set_blocking(end, False)
    # The byte on the pipe is all there is to a signal.
    previous = {number: signal.signal(number, lambda *_: None) for number in wanted}
    wakes = signal.set_wakeup_fd(writing_end, warn_on_full_buffer=False)
    try:
        yield reading_end
    finally:
        signal.set_wakeup_fd(wakes)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(reading_end)
        os.close(writing_end)


DESCRIPTOR = "LONGHAUL_LIFELINE"
"""Environment variable of a worker: the pipe's reading end."""


def hold_on(environment: Mapping[str, str], grace_s: Seconds, log: Path) -> threading.Event:
    """In a worker: once the supervisor has died, save and end, at the latest after `grace_s`.

    Harmless where nobody supervises. `log`: takes standard error, which the supervisor read before.
    The event is set once the supervisor has died.
    """
    died = threading.Event()
    if DESCRIPTOR not in environment:
        return died
    descriptor = int(environment[DESCRIPTOR])
    if descriptor == 0:  # the pipe came as standard input: whoever reads that must not meet it
        descriptor = os.dup(0)
        read_nothing()
    os.set_inheritable(descriptor, False)  # else children would keep nothing, but inherit clutter

    def wait() -> None:
        with suppress(OSError):
            os.read(descriptor, 1)
        died.set()
        with suppress(OSError):
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), 2)
        _write("the supervisor has died: nobody watches this worker, which saves and ends")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        _write(f"not saved within {grace_s:g} s: ending all the same")
        os._exit(ExitCode.START_AGAIN)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
    return died


def read_nothing() -> None:
    """Let this process's standard input be empty."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def _write(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"longhaul: {text}\n".encode())
