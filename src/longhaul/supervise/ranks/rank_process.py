"""A rank's process, in a session of its own: a fork, or started with its node's command."""

import multiprocessing.context
import multiprocessing.process
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from longhaul.core.addresses import KEPT_IN, SENT, unsealed
from longhaul.core.errors import ExitCode
from longhaul.core.output import output
from longhaul.core.units import Bytes, Seconds
from longhaul.supervise.pipes import DESCRIPTOR, PAUSE, STOPS, read_nothing
from longhaul.supervise.ranks.watchdog import ProcessState

_BY_SIGNAL = 128


class Started:
    """A program started with a command, with what `multiprocessing` offers of a fork.

    What a worker must know is written on its command line, because a command such as `ssh` passes
    no environment on; its standard input is the pipe that tells it of the supervisor's death.
    """

    def __init__(self, outfit: "Outfit", writing_end: int) -> None:
        added = dict(outfit.environment) | {DESCRIPTOR: "0"}
        if KEPT_IN in os.environ:  # in the environment alone: anybody may read a command line
            added[SENT] = "1"
        command = [unsealed(word, references=False) for word in outfit.command]
        words = [f"{name}={value}" for name, value in added.items()]
        self._program = list(outfit.program)
        with outfit.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "env", *words, *outfit.program],
                stdin=outfit.lifeline,
                stdout=None if outfit.on_terminal else log,
                stderr=writing_end if outfit.on_terminal else log,
                env=os.environ | added, start_new_session=True,
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
        """The process that has become the program, or the command's until there is one."""
        if self._worker is None:
            for process in self._family():
                with suppress(psutil.Error):
                    if process.cmdline() == self._program:
                        self._worker = process.pid
                        break
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


_KILLED_WITHIN_S: Seconds = 5.0
_PIECE: Bytes = 65_536
_FORKING = multiprocessing.get_context("fork")
Forked = multiprocessing.context.ForkProcess
_STATES: dict[str, ProcessState] = {
    psutil.STATUS_STOPPED: "stopped",
    psutil.STATUS_TRACING_STOP: "stopped",
    psutil.STATUS_DISK_SLEEP: "in the kernel",
    psutil.STATUS_ZOMBIE: "gone",
    psutil.STATUS_DEAD: "gone",
}


@dataclass(frozen=True, slots=True)
class Outfit:
    """What a rank's process is given."""

    work: Callable[[], None]
    """Leaves by SystemExit with the exit code, as commands do."""
    environment: Mapping[str, str]
    log: Path
    on_terminal: bool
    """Its standard output is the supervisor's own, and its standard error is passed on by it."""
    closes: tuple[int, ...]
    """Descriptors of the supervisor that it must not keep open."""
    command: tuple[str, ...] = ()
    """What `program` is started with; empty: `work` is done by a fork."""
    program: tuple[str, ...] = ()
    lifeline: int = -1


class RankProcess:
    """A rank's process.

    The supervisor has read the recipe already; a fresh interpreter would need another 0.4 s for
    that, at every restart and for every rank. A fork is safe, because the supervisor holds no
    tensors and no device, and its only other thread beats the lease. On a node that has a command
    of its own, a program is started with that command instead.
    """

    def __init__(self, rank: int, outfit: Outfit) -> None:
        self.rank = rank
        self.log = outfit.log
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self._log_begins: Bytes = self.log.stat().st_size
        self.errors: int | None = None
        """Can be read for what it writes to its standard error; None once that is closed."""
        writing_end = -1
        if outfit.on_terminal:
            self.errors, writing_end = os.pipe()
            os.set_blocking(self.errors, False)
        try:
            begin = Started if outfit.command else self._fork
            self._process: Forked | Started = begin(outfit, writing_end)
        finally:
            if outfit.on_terminal:
                os.close(writing_end)

    def _fork(self, outfit: Outfit, writing_end: int) -> Forked:
        forked = _FORKING.Process(target=_live, args=(outfit, writing_end, self.errors))
        # Until it has a session and handlers of its own, it would hear what is meant for this one.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            forked.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        return forked

    @property
    def pid(self) -> int:
        """Process number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    @property
    def answers(self) -> int:
        """The process that does the work: what a command has started, or else `pid`."""
        return self._process.worker if isinstance(self._process, Started) else self.pid

    @property
    def running(self) -> bool:
        """It has not ended yet."""
        return self.exit_code is None

    @property
    def state(self) -> ProcessState:
        """What the system says of it."""
        try:
            return _STATES.get(psutil.Process(self.answers).status(), "running")
        except psutil.Error:
            return "gone"

    def log_end(self, most: Bytes) -> str:
        """The end of what this process wrote into its log."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_begins, size - most))
            return log.read().decode(errors="replace")

    def pass_on(self) -> None:
        """Let what it wrote to its standard error reach its log and this process's own."""
        if self.errors is None:
            return
        with suppress(BlockingIOError):  # there is none for now
            while piece := os.read(self.errors, _PIECE):
                with suppress(OSError), self.log.open("ab") as log:
                    log.write(piece)
                output(2).write(piece)
            self.close()  # everybody who could write has closed it

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it is still there."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.answers, number)

    def kill(self) -> bool:
        """SIGKILL its whole session; whether it has ended: a call to the kernel may not return."""
        if isinstance(self._process, Started):
            self._process.kill_what_it_started()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.send(signal.SIGKILL)  # it may not have come as far as having a session
        self._process.join(_KILLED_WITHIN_S)
        if self.running and isinstance(self._process, Forked):
            # Python would wait for it before it ends itself.
            multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]
        return not self.running

    def close(self) -> None:
        """Read its standard error no more."""
        if self.errors is not None:
            os.close(self.errors)
            self.errors = None


def _live(outfit: Outfit, writing_end: int, reading_end: int | None) -> None:
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*STOPS, PAUSE, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as SIGHUP under nohup
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        for descriptor in (*outfit.closes, reading_end):
            if descriptor is not None:
                os.close(descriptor)
        read_nothing()
        if outfit.on_terminal:
            os.dup2(writing_end, 2)
            os.close(writing_end)
        else:
            log = os.open(outfit.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        os.environ.update(outfit.environment)
        outfit.work()
    except KeyboardInterrupt:  # before the work has begun to listen; Python would show where it was
        os._exit(ExitCode.INTERRUPTED)
