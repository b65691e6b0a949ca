"""A rank's process where a fork cannot be: a program started with its node's command.

What a worker must know is written on its command line, because a command such as `ssh` passes no
environment on; its standard input is the pipe that tells it of the supervisor's death.

Enters: a command, an environment, a program. Leaves: a process in a session of its own, how it
ended, and the process among those it started that does the work.
Never knows: ranks.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

from longhaul.core.addresses import KEPT_IN, SENT, unsealed
from longhaul.core.errors import ExitCode
from longhaul.core.units import Seconds
from longhaul.supervise.ranks.lifeline import DESCRIPTOR

_BY_SIGNAL = 128


class Started:
    """A program started with a command, with what `multiprocessing` offers of a fork.

    Args:
        command: of the node.
        environment: added to that of this process, and put on the command line.
        program: its words.
        lifeline: reading end of a pipe; becomes its standard input.
        output: descriptor of its standard output; None: that of this process.
        errors: descriptor of its standard error.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        program: Sequence[str],
        lifeline: int,
        output: int | None,
        errors: int,
    ) -> None:
        told = dict(environment) | {DESCRIPTOR: "0"}
        if KEPT_IN in os.environ:  # in the environment alone: anybody may read a command line
            told[SENT] = "1"
        words = [f"{name}={value}" for name, value in told.items()]
        self._program = list(program)
        self._process = subprocess.Popen(
            [*(unsealed(word, references=False) for word in command), "env", *words, *program],
            stdin=lifeline, stdout=output, stderr=errors,
            env=os.environ | told, start_new_session=True,
        )  # fmt: skip
        self._worker: int | None = None

    @property
    def pid(self) -> int:
        """Process number of the command; it leads its session."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        code = self._process.poll()
        # A shell tells so of a signal that has ended what it had started; 130 is ours.
        by_signal = code is not None and code > _BY_SIGNAL and code != ExitCode.INTERRUPTED
        if code is None or not by_signal or code - _BY_SIGNAL not in set(signal.Signals):
            return code
        return _BY_SIGNAL - code

    @property
    def worker(self) -> int:
        """The process that has become the program: a command may have started it as its child,
        and signals are meant for it. As long as there is none, that of the command.
        """
        if self._worker is None:
            self._worker = next((p.pid for p in self._family() if self._is_program(p)), None)
        return self._worker or self.pid

    def join(self, most_s: Seconds) -> None:
        """Wait until it has ended, so long at most."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(most_s)

    def kill_what_it_started(self) -> None:
        """SIGKILL processes that may have sessions of their own."""
        for process in self._family()[1:]:
            with suppress(psutil.Error):
                process.kill()

    def _family(self) -> list[psutil.Process]:
        try:
            own = psutil.Process(self.pid)
            return [own, *own.children(recursive=True)]
        except psutil.Error:
            return []

    def _is_program(self, process: psutil.Process) -> bool:
        try:
            return list(process.cmdline()) == self._program
        except psutil.Error:
            return False
