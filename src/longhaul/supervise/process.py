"""A worker as a process: started in a session of its own, so that it can be ended alone.

Enters: a run's folder. Leaves: a process, its log in `workers/`, and how it ended.
Never knows: what the worker does.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from longhaul.core.errors import NeedsPerson
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.watchdog import ProcessState

_STATES: dict[str, ProcessState] = {
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_TRACING_STOP: "stopped",
    psutil.STATUS_DISK_SLEEP: "in the kernel",
    psutil.STATUS_ZOMBIE: "gone",
    psutil.STATUS_DEAD: "gone",
}


class Worker:
    """One worker process of a run.

    Args:
        folder: the run; the worker needs nothing else.
        rank: names its log.
        module: the command line it is started with; a drill has its own.
        command: what it does with the run.
        environment: variables to add.
        on_terminal: its standard output is this process's own, and `errors` reads its standard
            error, for somebody to watch; else both go into its log.
        inherits: descriptors it shall have.
    """

    def __init__(
        self,
        folder: RunFolder,
        rank: int = 0,
        module: str = "longhaul",
        command: Sequence[str] = ("worker",),
        environment: Mapping[str, str] | None = None,
        *,
        on_terminal: bool = False,
        inherits: Sequence[int] = (),
    ) -> None:
        folder.workers.mkdir(parents=True, exist_ok=True)
        self.rank = rank
        self.log: Path = folder.workers / f"{rank}.log"
        self._log_begins: Bytes = 0
        with self.log.open("ab") as log:
            self._log_begins = log.tell()
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", module, command[0]),
                    *(str(folder.path.resolve()), *command[1:]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=None if on_terminal else log,
                stderr=subprocess.PIPE if on_terminal else subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherits,
                env=os.environ | dict(environment or {}),
            )
        self.errors = self._process.stderr
        if self.errors is not None:
            os.set_blocking(self.errors.fileno(), False)

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """It has not ended yet."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def state(self) -> ProcessState:
        """What the system says of it."""
        try:
            return _STATES.get(psutil.Process(self.pid).status(), "running")
        except psutil.Error:
            return "gone"

    def log_end(self, most: Bytes) -> str:
        """The end of what this process wrote into its log."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_begins, size - most))
            return log.read().decode(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, most_s: Seconds) -> int:
        """Exit code; negative numbers are signals.

        Raises:
            NeedsPerson: it has not ended in time; it is killed.
        """
        try:
            return self._process.wait(most_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise NeedsPerson(
                f"worker {self.pid} has not ended within {most_s:g} s and was killed",
                f"its log is {self.log}",
            ) from error

    def kill(self) -> None:
        """SIGKILL the whole session: nothing is caught, nothing is flushed."""
        with suppress(ProcessLookupError, PermissionError):
            # What it had started may outlive it; its process group does not.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
