"""A worker as a process: started in a session of its own, so that it can be ended alone.

Enters: a run's folder. Leaves: a process, its log in `workers/`, and how it ended.
Never knows: what the worker does.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from longhaul.core.errors import NeedsPerson
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder


class Worker:
    """One worker process of a run.

    Args:
        folder: the run; the worker needs nothing else.
        rank: names its log.
        module: the command line it is started with; a drill has its own.
        command: what it does with the run.
        environment: variables to add.
    """

    def __init__(
        self,
        folder: RunFolder,
        rank: int = 0,
        module: str = "longhaul",
        command: Sequence[str] = ("worker",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.workers.mkdir(parents=True, exist_ok=True)
        self.log: Path = folder.workers / f"{rank}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", module, command[0]),
                    *(str(folder.path.resolve()), *command[1:]),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | dict(environment or {}),
            )

    @property
    def pid(self) -> int:
        """Process number."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """It has not ended yet."""
        return self._process.poll() is None

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
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
