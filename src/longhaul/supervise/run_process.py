"""A `longhaul` command on a run as a process: watched, hit and ended from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from longhaul.core.errors import NeedsPerson
from longhaul.core.records import Event, Record, StepRecord
from longhaul.core.units import Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.reading import read_journal
from longhaul.supervise.ownership import left_over
from longhaul.supervise.ranks.progress import progress_path, read_progress

_LOOK_EVERY_S: Seconds = 0.02
_JOURNAL_EVERY_S: Seconds = 0.1
"""Reading a whole journal takes milliseconds from the cores that the run trains on."""
Seen = Callable[[Record], bool]


class RunProcess:
    """The command and the workers it starts. Close it when done: it ends whatever is left.

    What is waited for and does not come in time raises `NeedsPerson`. `log`: where the output is
    added. `module`: the command line; a drill has its own.
    """

    def __init__(
        self,
        folder: RunFolder,
        arguments: Sequence[str],
        log: Path,
        module: str = "longhaul",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.log = log
        self._said = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env=os.environ | dict(environment or {}),
            )  # fmt: skip

    def __enter__(self) -> "RunProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process number of the command."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """The command has not ended."""
        return self._process.poll() is None

    @property
    def output(self) -> str:
        """What the command has said so far."""
        return self.log.read_bytes()[self._said :].decode(errors="replace")

    def ranks(self) -> dict[int, int]:
        """Rank → process number, of the workers that run."""
        return {worker.rank: worker.pid for worker in left_over(self.folder)}

    def step(self, rank: int = 0) -> int:
        """Updates that a rank has made, as it says itself."""
        said = read_progress(progress_path(self.folder, rank))
        return said.step if said is not None else 0

    def send(self, number: signal.Signals, rank: int | None = None) -> None:
        """Send a signal to a rank, or to the command alone."""
        os.kill(self.pid if rank is None else self.ranks()[rank], number)

    def wait_for_step(self, step: int, most_s: Seconds) -> None:
        """Wait until rank 0 has made so many updates."""
        self.wait_until(f"step {step}", lambda: self.step() >= step, most_s)

    def wait_for(self, what: str, seen: Seen, most_s: Seconds) -> Record:
        """Wait for a record in the journal; the first there is."""
        self.wait_until(
            what, lambda: any(map(seen, records(self.folder))), most_s, _JOURNAL_EVERY_S
        )
        return next(filter(seen, records(self.folder)))

    def wait_until(
        self, what: str, seen: Callable[[], bool], most_s: Seconds, every_s: Seconds = _LOOK_EVERY_S
    ) -> None:
        """Wait until something is the case, looked at so often."""
        deadline = time.monotonic() + most_s
        while not seen():
            ended = not self.running
            if (ended and not seen()) or time.monotonic() > deadline:
                why = f"the run ended with {self._process.poll()}" if ended else f"{most_s:g} s"
                raise NeedsPerson(
                    f"{what} did not come: {why}", f"what the run said is in {self.log}"
                )
            time.sleep(every_s)

    def wait(self, most_s: Seconds) -> int:
        """Exit code, once it has ended by itself; negative numbers are signals."""
        try:
            return self._process.wait(most_s)
        except subprocess.TimeoutExpired:
            raise NeedsPerson(
                f"the run has not ended by itself within {most_s:g} s",
                f"what it said is in {self.log}",
            ) from None

    def close(self) -> None:
        """End all of it at once, as where the machine goes: nobody saves anything."""
        # Stopped first: a supervisor would start again what it sees die.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            if self.running:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
            for pid in self.ranks().values():
                with suppress(ProcessLookupError):
                    os.killpg(pid, number)
        self._process.wait()


def records(folder: RunFolder) -> list[Record]:
    """A run's journal so far."""
    return list(read_journal(folder)) if folder.journal.is_dir() else []


def of_attempt(attempt: int, kind: str | None = None) -> Seen:
    """Seen is a step of an attempt, or an event of that kind in it."""

    def seen(record: Record) -> bool:
        wanted = isinstance(record, Event) and record.kind == kind
        return record.attempt == attempt and (wanted if kind else isinstance(record, StepRecord))

    return seen
