"""Replicas of a run: where they meet, which processes they are, and how each comes back.

Replica 0 is the leader: it keeps the run log, evaluates, saves, and its end is the run's end. The
others only make steps with it. A leader that comes back goes on from what the others have made of
the run meanwhile; each of its lives is an attempt of the run.
"""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from longhaul.config.recover import SuperviseSection
from longhaul.core.errors import NeedsPerson, RecipeError
from longhaul.core.events import EventKind
from longhaul.core.units import Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.supervise.history import SupervisedRun, forget_peer_recovery, read_peer_recovery
from longhaul.supervise.nodes.placement import Post, posts_here, threads_each

LEADER = 0
REPLICA = "LONGHAUL_REPLICA"
"""Environment variable of a worker: its number among replicas."""
LIGHTHOUSE = "LONGHAUL_LIGHTHOUSE"
_SILENCE_S: Seconds = 2.0
"""A replica whose heartbeat, ten a second, stops for so long counts as dead."""
_QUIET = {"RUST_LOG": "error"}
"""torchft writes four lines a step otherwise."""
_PROGRAM = """
import sys, time
from torchft.coordination import LighthouseServer
join_ms, silence_ms, grace_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
server = LighthouseServer(
    bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=join_ms, quorum_tick_ms=20,
    heartbeat_timeout_ms=silence_ms,
)
print(server.address().rpartition(":")[2], flush=True)
if sys.stdin.read() == "":
    time.sleep(grace_s)
server.shutdown()
"""


def leader_is_there(folder: RunFolder) -> Path:
    """A file that a leader makes once others may join it; until then they wait."""
    return folder.workers / "pilot-is-there"


def has_torchft() -> bool:
    """Whether torchft is installed (extra `ft`)."""
    return importlib.util.find_spec("torchft") is not None


def refuse_without_torchft() -> None:
    """Raise RecipeError, before anything is started, where torchft is not installed."""
    if not has_torchft():
        raise RecipeError(
            "parallel.elastic: torchft is not installed, by which replicas find each other",
            "install longhaul[ft], or set parallel.elastic=false",
        )


class Lighthouse:
    """The process at which replicas meet before every step (torchft's, in Rust); NeedsPerson if it
    does not start. It holds no state of the run. It waits `join_s` for a replica that is alive, and
    outlives its supervisor by `grace_s`, as workers still need it to make their last step.
    """

    def __init__(self, join_s: Seconds, grace_s: Seconds, log: Path) -> None:
        times = (str(round(join_s * 1000)), str(round(_SILENCE_S * 1000)), str(grace_s))
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *times],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True, env=os.environ | _QUIET,
            )  # fmt: skip
        assert self._process.stdout is not None
        port = self._process.stdout.readline().decode().strip()
        if not port:
            self.close()
            raise NeedsPerson("the lighthouse of the replicas did not start", f"its log is {log}")
        self.address = f"http://127.0.0.1:{port}"

    def descriptors(self) -> tuple[int, ...]:
        """Which workers must close, or it would not see that its supervisor has died."""
        ends = (self._process.stdin, self._process.stdout)
        return tuple(end.fileno() for end in ends if end is not None and not end.closed)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        for end in filter(None, (self._process.stdin, self._process.stdout)):
            end.close()


class Replicas:
    """What a supervisor needs where a run is of replicas of `each` processes that come and go."""

    def __init__(
        self, run: SupervisedRun, settings: SuperviseSection, processes: int, each: int
    ) -> None:
        self._run, self._processes, self.each = run, processes, each
        self._away: dict[int, Seconds] = {}
        """Since when replicas have been away that no peer has given its state yet."""
        run.folder.workers.mkdir(parents=True, exist_ok=True)
        leader_is_there(run.folder).unlink(missing_ok=True)
        join_s, log = settings.deadlines()["collective_s"], run.folder.workers / "lighthouse.log"
        self._lighthouse = Lighthouse(join_s, settings.grace_s, log)
        self.numbers = range(processes // each)
        self.close = self._lighthouse.close
        self.descriptors = self._lighthouse.descriptors

    def posts(self, number: int) -> list[Post]:
        """Of the processes of a replica about to start; devices are counted over all replicas."""
        forget_peer_recovery(self._run.folder, number)
        threads = os.environ.get("OMP_NUM_THREADS", str(threads_each(self._processes)))
        shared = {
            REPLICA: str(number), LIGHTHOUSE: self._lighthouse.address,
            "OMP_NUM_THREADS": threads, **_QUIET,
        }  # fmt: skip
        found = []
        for own, post in enumerate(posts_here(self.each), number * self.each):
            place = {"LOCAL_RANK": str(own), "LOCAL_WORLD_SIZE": str(self._processes)}
            here = place if self.each > 1 else {}
            found.append(replace(post, environment={**post.environment, **here, **shared}))
        return found

    def lost(self, number: int, now: Seconds) -> None:
        """A replica other than the leader has died."""
        if number != LEADER:
            self._away.setdefault(number, now)

    def welcome(self, running: Iterable[int]) -> None:
        """Write down which replicas are back, and whose state they were given."""
        for number in self._away.keys() & set(running):
            recovery = read_peer_recovery(self._run.folder, number)
            if recovery is None:
                continue
            away_s = recovery.monotonic - self._away.pop(number)
            self._run.emit(
                EventKind.REPLICA_BACK,
                recovery.step,
                rank=number,
                peer=recovery.peer,
                healed=recovery.wall,
                away_s=away_s,
            )
            self._run.say(
                f"replica {number} is back after {short_seconds(away_s)}, with the state of "
                f"replica {recovery.peer} at step {recovery.step}"
            )
