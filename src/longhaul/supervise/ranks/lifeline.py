"""A pipe from supervisor to worker, on which nothing is ever written: its end tells of a death.

Enters, at the supervisor: nothing. Enters, at the worker: the environment. Leaves: a worker that
notices at once that nobody watches it, saves, and ends in bounded time (incident M14).
Never knows: how a worker saves; to it, this is a scheduler's notice.
"""

import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from longhaul.core.errors import ExitCode
from longhaul.core.units import Seconds

DESCRIPTOR = "LONGHAUL_LIFELINE"
"""Environment variable of a worker: the pipe's reading end."""


class Lifeline:
    """The supervisor's end: as long as it is open, workers know that they are watched.

    A worker must close its copy of `writing_end`, or it would hold on to itself.
    """

    def __init__(self) -> None:
        self.reading_end, self.writing_end = os.pipe()
        self._held = True

    def environment(self) -> dict[str, str]:
        """What a worker must know, beside having `reading_end`."""
        return {DESCRIPTOR: str(self.reading_end)}

    def let_go(self) -> None:
        """Close it; workers that are left end themselves."""
        if self._held:
            self._held = False
            os.close(self.reading_end)
            os.close(self.writing_end)


def hold_on(environment: Mapping[str, str], grace_s: Seconds, log: Path) -> threading.Event:
    """In a worker: once the supervisor has died, save and end, at the latest after `grace_s`.

    Harmless where nobody supervises.

    Returns:
        set once the supervisor has died.

    Args:
        environment: of this process.
        grace_s: from the supervisor's death to the end.
        log: takes standard error, which the supervisor has read until then.
    """
    died = threading.Event()
    if DESCRIPTOR not in environment:
        return died
    descriptor = int(environment[DESCRIPTOR])
    if descriptor == 0:  # the pipe came as standard input: whoever reads that must not meet it
        descriptor = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
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


def _write(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"longhaul: {text}\n".encode())
