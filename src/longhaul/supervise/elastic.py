"""The supervisor of replicas: one that dies is started again while the others train on.

Replica 0 is the leader: it keeps the run log, evaluates, saves, and its end is the run's end. The
others only make steps with it. A leader that comes back goes on from what the others have made of
the run meanwhile; each of its lives is an attempt of the run.
"""

import os
import select
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from longhaul.core.clocks import RealClock
from longhaul.core.errors import ExitCode
from longhaul.core.events import EventKind
from longhaul.core.units import Bytes, Seconds, short_seconds
from longhaul.logbook.folder import RunFolder
from longhaul.logbook.lease import Lease
from longhaul.supervise.causes import Death, classify, last_message
from longhaul.supervise.ends import ended, group_end, in_words
from longhaul.supervise.history import (
    Chronicle,
    failures,
    forget_peer_recovery,
    read_peer_recovery,
    unbooked,
    usable_checkpoints,
)
from longhaul.supervise.lighthouse import Lighthouse
from longhaul.supervise.nodes.placement import Post, posts_here, threads_each
from longhaul.supervise.ownership import RETRY_S, Ownership
from longhaul.supervise.pipes import PAUSE, STOPS, SignalPipe, listening
from longhaul.supervise.ranks.group import Group
from longhaul.supervise.ranks.rank_process import RankProcess
from longhaul.supervise.ranks.watchdog import Watch
from longhaul.supervise.restart import Failure, Plan, next_plan, without_progress
from longhaul.supervise.supervisor import Job

REPLICA = "LONGHAUL_REPLICA"
"""Environment variable of a worker: its number among replicas."""
LIGHTHOUSE = "LONGHAUL_LIGHTHOUSE"
"""The address at which replicas meet."""
SILENCE_S: Seconds = 2.0
"""A replica whose heartbeat, ten a second, stops for so long counts as dead."""
_LEADER = 0
_LOOK_EVERY_S: Seconds = 0.5
_LOG_END: Bytes = 16_384
_TIDY_WITHIN_S: Seconds = 2.0
"""What a leader gets that has not begun to train when it is asked to end."""


def leader_is_there(folder: RunFolder) -> Path:
    """A file that a leader makes once others may join it; until then they wait."""
    return folder.workers / "pilot-is-there"


class ElasticSupervisor:
    """Supervises the replicas of one run, from a start to its end.

    Args:
        job: what is to be supervised.
        lease: held by this process.
        say: takes sentences for people.
        began: Unix time at which this process began; the first attempt books from there.
        each: processes of one replica; those of the first are numbered 0, 1, …, and so on.
    """

    def __init__(
        self, job: Job, lease: Lease, say: Callable[[str], None], began: Seconds, each: int = 1
    ) -> None:
        self._each = each
        self._job, self._lease, self._say, self._began = job, lease, say, began
        self._clock = RealClock()
        self._ownership = Ownership(job.folder, lease, self._clock, say)
        self._groups: dict[int, Group] = {}
        """Replicas that have been started."""
        self._started: Seconds = 0.0
        """When the last of them was."""
        self._due: dict[int, Seconds] = {}
        """When replicas that have died are started again."""
        self._lost: list[Failure] = []
        """Deaths of other replicas than the leader."""
        self._away: dict[int, Seconds] = {}
        """Since when those of them have been away that no peer has healed yet."""
        self._ranks = Watch(job.folder, job.settings)
        self._looked: Seconds = 0.0
        self._stop: ExitCode | None = None
        self._stop_requested_at: Seconds = 0.0
        self._passed_on = False
        self._ended_leader = False
        """The next leader makes another attempt."""

    def run(self) -> ExitCode:
        """Until the run is finished, somebody wants it to stop, or a person must look."""
        folder, settings = self._job.folder, self._job.settings
        folder.workers.mkdir(parents=True, exist_ok=True)
        with ExitStack() as leaving:
            signal_pipe = leaving.enter_context(listening())
            join_s, log = settings.deadlines()["collective_s"], folder.workers / "lighthouse.log"
            lighthouse = Lighthouse(join_s, SILENCE_S, settings.grace_s, log)
            leaving.callback(lighthouse.close)
            leaving.callback(self._ranks.close)
            leaving.callback(self._end_all)
            leader_is_there(folder).unlink(missing_ok=True)
            self._due = dict.fromkeys(range(self._job.processes // self._each), 0.0)
            while True:
                gone = self._lease.gone()  # nobody writes there until it is back
                if not gone:
                    self._start_those_due(lighthouse)
                groups = self._groups.values()
                errors = [descriptor for group in groups for descriptor in group.descriptors()]
                select.select([signal_pipe.descriptor, *errors], [], [], _LOOK_EVERY_S)
                for group in groups:
                    group.pass_on()
                if self._obey(signal_pipe):
                    return ExitCode.INTERRUPTED
                leader = self._groups.get(_LEADER)
                self._ownership.look(leader.step if leader is not None else None)
                left = [n for n, group in self._groups.items() if len(group.running) < self._each]
                for replica in () if gone else sorted(left):
                    code = self._answer(replica)
                    if code is not None:
                        return code
                if (code := self._stop_the_leader()) is not None:
                    return code
                self._welcome()
                self._watch()

    def _start_those_due(self, lighthouse: Lighthouse) -> None:
        now = self._clock.monotonic()
        for replica in sorted(replica for replica, due in self._due.items() if due <= now):
            if replica == _LEADER and self._ended_leader:
                if not self._ownership.try_to_renew():
                    self._due[replica] = now + RETRY_S
                    continue
                self._ended_leader = False
            del self._due[replica]
            forget_peer_recovery(self._job.folder, replica)
            self._started = now
            self._groups[replica] = Group(
                self._job.folder, self._lease.attempt, self._posts(replica, lighthouse),
                self._job.work, (), self._began, first=replica * self._each,
                beside=list(self._groups.values()), closes=lighthouse.descriptors(),
            )  # fmt: skip

    def _posts(self, replica: int, lighthouse: Lighthouse) -> list[Post]:
        """Of a replica's processes; their devices are counted over all replicas."""
        each, size = self._each, self._job.processes
        own = {
            REPLICA: str(replica),
            LIGHTHOUSE: lighthouse.address,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads_each(size))),
            **lighthouse.environment(),
        }
        found = []
        for number, post in enumerate(posts_here(each), replica * each):
            here = {"LOCAL_RANK": str(number), "LOCAL_WORLD_SIZE": str(size)} if each > 1 else {}
            found.append(replace(post, environment={**post.environment, **here, **own}))
        return found

    def _answer(self, replica: int) -> ExitCode | None:
        """What follows the end of one of a replica's processes; the run's exit code, if that is the
        run's end too.
        """
        group = self._groups[replica]
        codes = group.exit_codes
        end = group_end(codes, self._stop)
        if end is None:  # others of it follow one that has come to the end
            return None
        del self._groups[replica]
        group.close()
        if replica != _LEADER and end.exit_code == ExitCode.FINISHED:
            return None  # the leader follows
        if replica == _LEADER and end.exit_code is not None:
            return end.exit_code
        blamed = next(n for n, code in enumerate(codes) if code not in (None, 0))
        code = codes[blamed]
        assert code is not None
        plan = self._emit(replica, group, group.workers[blamed], code)
        if replica != _LEADER:
            if plan.restart and self._stop is None:
                self._due[replica] = self._clock.monotonic() + plan.wait_s
            return None
        if not plan.restart:
            return self._stop or plan.exit_code
        self._passed_on = False  # the others still have what it was to save
        self._ended_leader = True
        self._due[replica] = self._clock.monotonic() + plan.wait_s
        return None

    def _emit(self, number: int, group: Group, worker: RankProcess, code: int) -> Plan:
        """Find the cause of a death, decide what follows, and write both down."""
        folder, now = self._job.folder, self._clock.wall()
        step = group.step
        death = Death(number, code, worker.log_end(_LOG_END), "", self._clock.monotonic())
        cause = classify(death, self._job.signatures, self._job.device())
        failure = Failure(cause.name, cause.remedy, step, now)
        is_leader = number == _LEADER
        usable = usable_checkpoints(folder) if is_leader else {}
        before = failures(folder) if is_leader else self._lost
        # Deaths that training went on after cost seconds each, and may come every minute for ever.
        counted = without_progress([*before, failure])
        plan = next_plan(counted, list(usable), code, self._job.settings)
        chronicle = Chronicle(folder, self._lease.attempt, self._clock, self._lease.may_decide)
        if plan.poison is not None:
            chronicle.poison(plan.poison, usable[plan.poison], step or 0, plan.reason)
        told = ended(cause, plan, number, [code], step)
        seconds = unbooked(folder, self._lease.attempt, self._began, now) if is_leader else {}
        kind = EventKind.ATTEMPT_ENDED if is_leader else EventKind.REPLICA_LOST
        event = chronicle.emit(kind, step or 0, told, seconds)
        chronicle.close()
        if is_leader:
            self._began = event.time
        else:
            self._lost.append(failure)
            self._away.setdefault(number, death.ended)
        others = sum(bool(other.running) for other in self._groups.values())
        what = f"it comes back in {short_seconds(plan.wait_s)}" if plan.wait_s else "it comes back"
        follows = what if plan.restart else f"it stays away: {plan.reason}"
        self._say(f"WARNING: replica {number}: {in_words(cause)}; {others} train on, {follows}")
        if said := last_message(worker.log_end(_LOG_END)):
            self._say(f"  replica {number} said: {said}")
        return plan

    def _welcome(self) -> None:
        """Write down which replicas are back, and whose state they were given."""
        for number in self._away.keys() & self._groups.keys():
            peer_recovery = read_peer_recovery(self._job.folder, number)
            if peer_recovery is None:
                continue
            away_s = peer_recovery.monotonic - self._away.pop(number)
            told = {
                "rank": number,
                "peer": peer_recovery.peer,
                "healed": peer_recovery.wall,
                "away_s": away_s,
            }
            chronicle = Chronicle(self._job.folder, self._lease.attempt, self._clock)
            chronicle.emit(EventKind.REPLICA_BACK, peer_recovery.step, told, {})
            chronicle.close()
            self._say(
                f"replica {number} is back after {short_seconds(away_s)}, with the state of "
                f"replica {peer_recovery.peer} at step {peer_recovery.step}"
            )

    def _obey(self, signal_pipe: SignalPipe) -> bool:
        """Hear what people and schedulers want; True if all is to end at once."""
        for number in signal_pipe.heard():
            if number == PAUSE:
                for group in self._groups.values():
                    group.send(signal.SIGSTOP)
                os.kill(os.getpid(), signal.SIGSTOP)  # until the shell's `fg` or `bg`
                for group in self._groups.values():
                    group.send(signal.SIGCONT)
                self._ranks.blink()
                continue
            if number == signal.SIGINT and self._stop == ExitCode.INTERRUPTED:
                saved = max(usable_checkpoints(self._job.folder), default=0)
                self._say(f"SIGINT again: all replicas end at once; step {saved} is saved")
                return True
            self._stop, self._stop_requested_at = STOPS[number], self._clock.monotonic()
        return False

    def _stop_the_leader(self) -> ExitCode | None:
        """Let the leader save and end, once it trains: one that is coming back must be healed
        first, or what the others have made would be lost. An exit code, if there is nothing to
        save.
        """
        if self._stop is None or self._passed_on:
            return None
        asked_s = self._clock.monotonic() - self._stop_requested_at
        nobody = all(group.step is None for group in self._groups.values())
        if nobody and asked_s > _TIDY_WITHIN_S:
            return self._stop
        leader = self._groups.get(_LEADER)
        if leader is not None and leader.step is not None:
            interrupt = self._stop == ExitCode.INTERRUPTED
            leader.workers[0].send(signal.SIGINT if interrupt else signal.SIGTERM)
            self._passed_on = True
        elif asked_s > self._job.settings.grace_s:
            self._say("WARNING: the leader did not come back in time; the last steps are lost")
            return self._stop
        return None

    def _watch(self) -> None:
        """End replicas that hang; what follows is as after any other death."""
        now = self._clock.monotonic()
        if now - self._looked < _LOOK_EVERY_S or not self._groups:
            return
        self._looked = now
        ranks = [rank for group in self._groups.values() for rank in group.look()]
        verdict = self._ranks.look(now, self._started, ranks)
        if verdict.hung:
            workers = {w.rank: w for group in self._groups.values() for w in group.workers}
            for number in verdict.missing or tuple(workers):
                self._say(f"WARNING: replica {number // self._each} hangs: {verdict.reason}")
                workers[number].kill()

    def _end_all(self) -> None:
        for group in self._groups.values():
            group.close()
