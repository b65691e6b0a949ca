"""The workers of one attempt, and the port at which they meet, kept until rank 0 listens."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from longhaul.checkpoint.shared_memory import SharedMemory
from longhaul.core.output import output
from longhaul.core.units import Bytes, Seconds
from longhaul.logbook.folder import RunFolder
from longhaul.parallel.layout import KEPT_PORT
from longhaul.supervise.causes import Death
from longhaul.supervise.nodes.placement import Post
from longhaul.supervise.ownership import write_down
from longhaul.supervise.pipes import DESCRIPTOR
from longhaul.supervise.ranks.progress import Progress, progress_path, read_progress
from longhaul.supervise.ranks.rank_process import Outfit, RankProcess
from longhaul.supervise.ranks.stacks import (
    forget_recording,
    recorder_environment,
    stacks_path,
    take_stacks,
)
from longhaul.supervise.ranks.watchdog import Rank

_LOOPBACK = "127.0.0.1"


class Meeting:
    """A port. Close it once rank 0 has been started: its copy of the descriptor holds the port.

    Importing torch and preparing text take rank 0 seconds, in which any program might take a port
    that was merely found free. So it stays bound, and rank 0, a fork, inherits the descriptor, on
    which torch's store listens. To a rank 0 that a command starts on another node nothing can be
    handed: a port that is free here is a guess there. One rank alone meets nobody.
    """

    def __init__(self, posts: Sequence[Post]) -> None:
        self.environment: Mapping[str, str] = {}
        """Of every rank."""
        self.of_first: Mapping[str, str] = {}
        """Of rank 0 beside it."""
        self._descriptor = -1
        if len(posts) == 1:
            return
        # Other hosts need not reach a run that has only this one.
        kept = _bound(only_here=posts[0].environment["MASTER_ADDR"] == _LOOPBACK)
        self.environment = {"MASTER_PORT": str(kept.getsockname()[1])}
        self._descriptor = kept.detach()  # a fork must have no object that closes it some day
        if posts[0].command:
            self.close()
        else:
            self.of_first = {KEPT_PORT: str(self._descriptor)}

    def close(self) -> None:
        """Keep it no longer."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _bound(only_here: bool) -> socket.socket:
    """A socket on a free port, which does not listen yet."""
    both = not only_here and socket.has_dualstack_ipv6()
    kept = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    if both:
        kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    # Without SO_REUSEADDR: with it another program that sets it too could bind to the same port.
    kept.bind(("::" if both else _LOOPBACK if only_here else "", 0))
    return kept


ATTEMPT = "LONGHAUL_ATTEMPT"
"""Environment variable of a worker: the attempt whose lease its supervisor holds."""
BEGAN = "LONGHAUL_BEGAN"
"""Unix time from which a worker accounts for its start."""
_LOG_END: Bytes = 16_384


class Group:
    """All workers of one attempt, or those of one replica.

    `began`: Unix time from which their start counts. `memory`: in which forked workers keep what
    outlives them. `first`: number of its first rank on this machine, by which its files are called.
    `beside`: the groups of the other replicas; None where there are no replicas. `closes`:
    descriptors of this process that no worker may hold.
    """

    def __init__(
        self,
        folder: RunFolder,
        attempt: int,
        posts: Sequence[Post],
        work: Callable[[], None],
        program: tuple[str, ...],
        began: Seconds,
        memory: SharedMemory | None = None,
        first: int = 0,
        beside: Sequence["Group"] | None = None,
        closes: Sequence[int] = (),
    ) -> None:
        self.folder = folder
        self.began, self._began_wall = time.monotonic(), time.time()
        self.first = first
        self._posts = posts
        # Not removed before a start: on a full disk it could not be made anew.
        ranks = range(first, first + len(posts))
        self._left = [read_progress(progress_path(folder, rank)) for rank in ranks]
        self._closed = False
        # Workers notice by its end that this process has died; one that kept a copy of the writing
        # end would hold on to itself.
        self._lifeline, self._held_end = os.pipe()
        self._meeting = Meeting(posts)
        self._ended: dict[int, Seconds] = {}
        self.workers: list[RankProcess] = []
        self.stuck: list[RankProcess] = []
        """Those that `close` could not end."""
        shared = {ATTEMPT: str(attempt), BEGAN: f"{began:.6f}"}
        shared |= {DESCRIPTOR: str(self._lifeline), **self._meeting.environment}
        if beside is None:  # ranks of two replicas would write the same files
            shared |= recorder_environment(folder)
        others = [end for group in beside or () for end in group.held()]
        if memory is not None:
            memory.keep_only([rank for rank, post in enumerate(posts) if not post.command])
        try:
            for rank, post in zip(ranks, posts, strict=True):
                with suppress(OSError):
                    stacks = stacks_path(folder, rank)
                    if stacks.exists() and stacks.stat().st_size:  # of a hang: to be read later
                        stacks.replace(stacks.with_name(f"{rank}.before-{attempt}.stacks"))
                    stacks.unlink(missing_ok=True)
                forget_recording(folder, rank)
                kept = memory.environment(rank) if memory and not post.command else {}
                kept |= self._meeting.of_first if rank == first else {}
                outfit = Outfit(
                    work,
                    shared | kept | dict(post.environment),
                    folder.workers / f"{rank}.log",
                    on_terminal=rank == 0,
                    closes=(*self.held(), *others, *closes),
                    command=post.command,
                    program=program,
                    lifeline=self._lifeline,
                )
                self.workers.append(RankProcess(rank, outfit))
                self._meeting.close()  # rank 0 has its own copy, and nobody else is to have one
        except BaseException:
            self.close()
            raise
        with suppress(OSError):  # a full disk: workers that are left alone notice it all the same
            workers = [worker for group in (self, *(beside or ())) for worker in group.workers]
            write_down(folder, attempt, [(worker.rank, worker.pid) for worker in workers])

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
        said = (self._progress(worker.rank) for worker in self.workers)
        trained = [p.step for p in said if p and p.phase not in ("prepare", "start-up")]
        return max(trained, default=None)

    @property
    def steps_made(self) -> bool:
        """A rank has made a step in this attempt."""
        said = (self._progress(worker.rank) for worker in self.workers)
        return any(progress.step > 0 for progress in said if progress)

    def look(self) -> list[Rank]:
        """Every rank as it looks from outside."""
        return [
            Rank(worker.rank, post.host, self._progress(worker.rank), worker.state)
            for worker, post in zip(self.workers, self._posts, strict=True)
        ]

    def deaths(self, now: Seconds, kernel: Sequence[str] = ()) -> list[Death]:
        """How workers ended that did not finish well, first seen `now`; `kernel` is by rank."""
        codes = self.exit_codes  # read once: a rank may end between two looks
        for worker, code in zip(self.workers, codes, strict=True):
            if code is not None:
                self._ended.setdefault(worker.rank, now)
        texts = kernel or [""] * len(self.workers)
        return [
            Death(worker.rank, code, worker.log_end(_LOG_END), text, self._ended[worker.rank])
            for worker, code, text in zip(self.workers, codes, texts, strict=True)
            if code not in (None, 0)
        ]

    def _progress(self, rank: int) -> Progress | None:
        """What a rank has said since its start; not what one of an earlier attempt has left: the
        machine may have been started anew since, and its monotonic time with it.
        """
        said = read_progress(progress_path(self.folder, rank))
        if said is None or said == self._left[rank - self.first]:
            return None
        if self._posts[rank - self.first].command:
            # Another machine counts its monotonic time from another moment.
            said = replace(said, monotonic=said.wall - self._began_wall + self.began)
        return said if said.monotonic >= self.began else None  # wall time jumps

    def stacks(self) -> dict[int, str | None]:
        """Take the stacks of all ranks into `workers/`; where each waits for others."""
        return take_stacks(self.folder, self.running)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to every worker."""
        for worker in self.workers:
            worker.send(number)

    def descriptors(self) -> list[int]:
        """What `pass_on` has to be called for when it can be read."""
        return [worker.errors for worker in self.workers if worker.errors is not None]

    def held(self) -> list[int]:
        """What workers started from now on must close."""
        return [self._held_end, *self.descriptors()]

    def pass_on(self) -> None:
        """Let what rank 0 wrote to its standard error reach its log and this process's own."""
        for worker in self.workers:
            worker.pass_on()

    def close(self) -> None:
        """End whatever still runs, and what it may have started."""
        if self._closed:
            return
        self._closed = True
        self._meeting.close()
        self.stuck = [worker for worker in self.workers if not worker.kill()]
        self.pass_on()
        for worker in self.workers:
            worker.close()
        os.close(self._lifeline)
        os.close(self._held_end)
        # A live line hides the terminal's cursor, and a killed worker cannot bring it back.
        with suppress(OSError, ValueError):
            if self.first == 0 and sys.stdout.isatty():
                output(1).write(b"\x1b[?25h\r\x1b[K")
