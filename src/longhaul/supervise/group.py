"""The worker processes of one attempt on this machine, started and ended together.

Enters: a run's folder, an attempt number, how many. Leaves: processes with torchrun's environment,
what they look like from outside, and none of them when it is closed.
Never knows: what is judged from that.
"""

import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.classify import Death
from longhaul.supervise.fence import write_down
from longhaul.supervise.lifeline import Lifeline
from longhaul.supervise.progress import Progress, progress_path, read_progress
from longhaul.supervise.rank_process import Outfit, RankProcess
from longhaul.supervise.stacks import stacks_path, take_stacks
from longhaul.supervise.watchdog import Rank

ATTEMPT = "LONGHAUL_ATTEMPT"
"""Environment variable of a worker: the attempt whose lease its supervisor holds."""
BEGAN = "LONGHAUL_BEGAN"
"""Unix time from which a worker books its start."""
_LOG_END: Bytes = 16_384
_PIECE: Bytes = 65_536
_STACKS_WITHIN_S: Seconds = 2.0


class Group:
    """All workers of one attempt.

    Args:
        folder: the run.
        attempt: whose lease this process holds.
        size: how many.
        work: what each of them does; leaves by SystemExit.
        began: Unix time from which they book their start.
    """

    def __init__(
        self,
        folder: RunFolder,
        attempt: int,
        size: int,
        work: Callable[[], None],
        began: Seconds,
    ) -> None:
        self.folder = folder
        self._began = time.monotonic(), time.time()
        self._closed = False
        self._lifeline = Lifeline()
        self._ended: dict[int, Seconds] = {}
        self.workers: list[RankProcess] = []
        shared = {ATTEMPT: str(attempt), BEGAN: f"{began:.6f}", **self._lifeline.environment()}
        shared |= _world(size)
        try:
            for rank in range(size):
                with suppress(OSError):
                    stacks_path(folder, rank).unlink(missing_ok=True)
                outfit = Outfit(
                    work=work,
                    environment=shared | _place(rank, size),
                    log=folder.workers / f"{rank}.log",
                    on_terminal=rank == 0,
                    closes=(self._lifeline.writing_end, *self.descriptors()),
                )
                self.workers.append(RankProcess(rank, outfit))
        except BaseException:
            self.close()
            raise
        with suppress(OSError):  # a full disk: workers that are left alone notice it all the same
            write_down(folder, attempt, [(worker.rank, worker.pid) for worker in self.workers])

    @property
    def running(self) -> list[RankProcess]:
        """Workers that have not ended."""
        return [worker for worker in self.workers if worker.running]

    @property
    def exit_codes(self) -> list[int | None]:
        """By rank; None for those that run."""
        return [worker.exit_code for worker in self.workers]

    @property
    def step(self) -> int | None:
        """Furthest step that a rank has reached; None if none has got as far as training."""
        said = [self._progress(worker.rank) for worker in self.workers]
        trained = [p.step for p in said if p and p.phase not in ("prepare", "start-up")]
        return max(trained, default=None)

    @property
    def steps_made(self) -> bool:
        """A rank has made a step in this attempt."""
        said = [self._progress(worker.rank) for worker in self.workers]
        return any(progress.step > 0 for progress in said if progress)

    def look(self) -> list[Rank]:
        """Every rank as it looks from outside."""
        host = platform.node()
        return [
            Rank(worker.rank, host, self._progress(worker.rank), worker.state)
            for worker in self.workers
        ]

    def deaths(self, now: Seconds, kernel: str = "") -> list[Death]:
        """How workers that have ended did, those that finished well left out.

        Args:
            now: taken for the time of death of those that were alive at the last call.
            kernel: the kernel's messages since the attempt began.
        """
        for worker in self.workers:
            if not worker.running:
                self._ended.setdefault(worker.rank, now)
        return [
            Death(worker.rank, code, worker.log_end(_LOG_END), kernel, self._ended[worker.rank])
            for worker in self.workers
            if (code := worker.exit_code) not in (None, 0)
        ]

    def _progress(self, rank: int) -> Progress | None:
        """What a rank has said; what one of an earlier attempt has left does not count.

        It is not removed before a start: on a full disk it could not be made anew.
        """
        said = read_progress(progress_path(self.folder, rank))
        monotonic, wall = self._began
        return said if said and said.monotonic >= monotonic and said.wall >= wall - 1 else None

    def stacks(self) -> dict[int, str | None]:
        """Take the stacks of all ranks into `workers/`; where each waits for others."""
        return take_stacks(self.folder, self.running, _STACKS_WITHIN_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every worker."""
        for worker in self.workers:
            worker.send(number)

    def descriptors(self) -> list[int]:
        """What `pass_on` has to be called for when it can be read."""
        return [worker.errors for worker in self.workers if worker.errors is not None]

    def pass_on(self) -> None:
        """Let what rank 0 wrote to its standard error reach its log and this process's own."""
        for worker in self.workers:
            if worker.errors is None:
                continue
            while piece := _read(worker.errors):
                with suppress(OSError), worker.log.open("ab") as log:
                    log.write(piece)
                with suppress(OSError):
                    os.write(2, piece)
            if piece == b"":  # everybody who could write has closed it
                worker.close()

    def close(self) -> None:
        """End whatever still runs, and what it may have started."""
        if self._closed:
            return
        self._closed = True
        for worker in self.workers:
            worker.kill()
        self.pass_on()
        for worker in self.workers:
            worker.close()
        self._lifeline.let_go()
        _show_cursor()


def _world(size: int) -> Mapping[str, str]:
    """The environment torchrun would set; one process has none, and makes no process group."""
    if size == 1:
        return {}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads_each(size))),
    }


def _place(rank: int, size: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank)} if size > 1 else {}


def threads_each(size: int) -> int:
    """Threads of one worker of `size` on this machine: together no more than there are cores."""
    cores: Sequence[int] = ()
    if hasattr(os, "sched_getaffinity"):
        cores = list(os.sched_getaffinity(0))
    return max(1, (len(cores) or os.cpu_count() or 1) // size)


def _read(descriptor: int) -> bytes | None:
    """Some bytes; none at the end; None if there are none for now."""
    try:
        return os.read(descriptor, _PIECE)
    except BlockingIOError:
        return None


def _show_cursor() -> None:
    """A live line hides the terminal's cursor, and a killed worker cannot bring it back."""
    with suppress(OSError, ValueError):
        if sys.stdout.isatty():
            os.write(1, b"\x1b[?25h\r\x1b[K")
